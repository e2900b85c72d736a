"""A curriculum on the embedded default: a run whose trainer is killed ends with the tasks and the bits of an unbroken one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.embedded_default import xp
from tests.support.launching import ROOT
from tests.support.resuming import SMALL, STEPS, lose_once, process_with
from xp.episode.metrics_file import read_metrics

WORDS = (
    "env.train.curriculum=pass_rate",
    "env.train.curriculum_exploration=0.3",
    # The small episodes win nothing: those that write more than others have passed.
    "env.reward_fn=tools.gpu.reward:length",
    "evaluation.pass_threshold=0.25",
)


def tasks_of(run: Path) -> dict[int, set[int]]:
    """Tasks of each rollout step, in the last attempt that played it."""
    tasks: dict[int, dict[int, set[int]]] = {}
    for file in sorted(run.glob("attempt_*/train/trajectories/train.jsonl")):
        attempt = int(file.parts[-4].removeprefix("attempt_"))
        for text in file.read_text().splitlines():
            record = json.loads(text)
            tasks.setdefault(record["step"], {}).setdefault(attempt, set()).add(record["index"])
    return {step: attempts[max(attempts)] for step, attempts in tasks.items()}


def pass_rates(run: Path) -> list[list[float]]:
    names = ("untried", "below", "in_bounds", "above", "forgotten")
    lines = read_metrics(run / "metrics.jsonl", "train")
    return [[line[f"curriculum/{name}"] for name in names] for line in lines]


@pytest.mark.integration
@pytest.mark.timeout(1800)
@pytest.mark.slow
def test_a_killed_run_draws_and_learns_what_an_unbroken_one_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    broken = tmp_path / "broken"
    broken.mkdir()
    lose_once(
        broken, lambda tree: process_with("xp.backends.trl.worker.train", tree).kill(), *WORDS
    )
    done = xp(tmp_path, *SMALL, *WORDS, f"outputs={tmp_path}/unbroken")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    (killed,) = (broken / "runs").iterdir()
    (whole,) = (tmp_path / "unbroken/runs").iterdir()
    assert tasks_of(killed) == tasks_of(whole)
    assert sorted(tasks_of(whole)) == [*range(1, STEPS + 1)]
    rates = pass_rates(whole)
    assert pass_rates(killed) == rates
    assert len({tuple(line) for line in rates}) > 2
    assert any(line[2] > 0 for line in rates)
    weights = "model/model.safetensors"
    assert (killed / weights).read_bytes() == (whole / weights).read_bytes()
