"""Preparation killed anywhere goes on where it was, and ends with the same bytes."""

from __future__ import annotations

import json
import random
import signal
import time
from functools import cache
from pathlib import Path

import pytest

from tests.reliability.prepare_fault import POINTS
from tests.reliability.prepare_runs import Runs, new_runs
from tests.support.cases import few
from xp.lib.atomic import private_directory
from xp.tasks.store import prove

LATER = {"task": (1, 340), "shard": (1, 3)}


@cache
def undisturbed() -> tuple[dict[str, bytes], float]:
    """Result of a run without a fault, and its duration."""
    runs = new_runs(private_directory("test"))
    start = time.monotonic()
    assert runs.finish()[0] == 0
    return runs.files(), time.monotonic() - start


def check_that_the_next_run_ends_it(runs: Runs) -> None:
    kept = finished_shards(runs)
    runs.world.forget()
    code, said = runs.finish()
    assert code == 0, said
    assert runs.files() == undisturbed()[0]
    assert runs.leftovers() in ([], [f"{runs.path.name}.work"])
    again = runs.world.opened()
    assert set(again.values()) <= {1}
    assert not again.keys() & kept, "a task of a finished shard was fetched again"


def finished_shards(runs: Runs) -> set[str]:
    """Tasks that stand in shards (or in the set); the first shard holds the held-out tasks."""
    if runs.path.exists():
        return {row.task_id.removeprefix("fake/") for row in prove(runs.path).rows()}
    done = set()
    for shard in runs.path.with_name(f"{runs.path.name}.work").glob("shard-*.jsonl"):
        split = "test" if shard.name == "shard-000000.jsonl" else "train"
        done |= {f"{split}/{json.loads(line)[0]}" for line in shard.read_text().splitlines()[1:]}
    return done


@pytest.mark.parametrize(
    ("point", "nth"),
    few([(point, nth) for point in reversed(POINTS) for nth in LATER.get(point, (1,))], 4),
    ids=str,
)
def test_killed_at_a_named_point_the_next_run_ends_it(tmp_path: Path, point: str, nth: int) -> None:
    runs = new_runs(tmp_path)
    code, _ = runs.finish(fault=f"{point}:kill:{nth}")
    assert code == -signal.SIGKILL, f"{point} was not passed {nth} times"
    assert runs.path.exists() == (point == "committed")
    check_that_the_next_run_ends_it(runs)


@pytest.mark.parametrize("point", few(reversed(POINTS), 1))
def test_failing_at_a_named_point_leaves_no_set(tmp_path: Path, point: str) -> None:
    runs = new_runs(tmp_path, latency_s=0.0)
    code, said = runs.finish(fault=f"{point}:raise")
    assert (code, "InjectedFault" in said) == (1, True), said
    assert runs.path.exists() == (point == "committed")
    check_that_the_next_run_ends_it(runs)


@pytest.mark.parametrize("seed", few(range(20), 1))
def test_killed_at_a_random_time_the_next_run_ends_it(tmp_path: Path, seed: int) -> None:
    runs = new_runs(tmp_path)
    process = runs.start()
    time.sleep(random.Random(seed).uniform(0.05, undisturbed()[1]))
    process.send(signal.SIGKILL)
    process.end()
    if runs.path.exists():
        prove(runs.path)
    check_that_the_next_run_ends_it(runs)
