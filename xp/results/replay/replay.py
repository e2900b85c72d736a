"""Does a recorded run again, and tells whether its task set, first batch and weights are the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from xp.episode.trajectory import TRAIN
from xp.errors import ExitCode
from xp.execution.lock import read_lock
from xp.lib.nested import grouped, varied
from xp.lib.reading import json_of
from xp.lib.text import counted
from xp.lib.verified import DIGESTS
from xp.planning.episode import episode_environ
from xp.planning.stages import prepare_config
from xp.results.replay.recorded import RecordedRun
from xp.results.report.episodes import EpisodeIndex
from xp.spec import DType, RunSpec
from xp.tasks.prepare import prepare
from xp.tasks.store import BrokenSet, TaskSet, prove

MOST_LINES: Final = 10
"""Largest number of differences that a check names; the others are counted."""


class Outcome(StrEnum):
    SAME = "same"
    DIFFERS = "differs"
    NOT_CHECKED = "not checked"


@dataclass(frozen=True)
class Check:
    """Result of one comparison."""

    what: str
    verdict: Outcome
    summary: str
    differences: tuple[str, ...] = ()


def _check(what: str, summary: str, lines: Sequence[str]) -> Check:
    if not lines:
        return Check(what, Outcome.SAME, summary)
    differences = list(lines[:MOST_LINES])
    if len(lines) > MOST_LINES:
        differences.append(f"and {len(lines) - MOST_LINES} more")
    return Check(what, Outcome.DIFFERS, counted(len(lines), "difference"), tuple(differences))


def check_tasks(recorded: RecordedRun, scratch: Path) -> Check:
    """Fetches the tasks again into a store of its own, and compares them with the recorded ones."""
    config = replace(prepare_config(recorded.spec), store="tasks")
    new = prepare(config, episode_environ(recorded.spec), scratch)
    expected = read_lock(recorded.records).facts.get("tasks.content", "")
    attempt = recorded.records / f"attempt_{read_lock(recorded.records).attempt}"
    plan = json_of(attempt / "plan.json", ExitCode.RUN_DIR, below=recorded.records)
    key = Path(plan["stages"][0]["job"]["outputs"][0]).parent
    stored = None
    for root in (recorded.records, Path(recorded.spec.outputs)):
        with suppress(BrokenSet, OSError):
            stored = stored or prove(root / key)
    lines = []
    if stored is not None and expected and stored.manifest.content_digest != expected:
        lines.append(f"{stored.path}: the stored set is not the one of the lock")
    if new.manifest.content_digest != (expected or (stored and stored.manifest.content_digest)):
        if stored is None:
            lines.append("the recorded set is not here: digests differ")
        else:
            lines += _differing_tasks(stored, new)
    size = counted(sum(1 for _ in new.rows()), "task")
    return _check("task set", f"{size}, digest {new.manifest.content_digest[:12]}", lines)


def _differing_tasks(before: TaskSet, after: TaskSet) -> Iterator[str]:
    first, second = ({row.task_id: row for row in store.rows()} for store in (before, after))
    for task in dict.fromkeys([*first, *second]):
        expected = first.get(task)
        other = second.get(task)
        if expected is None or other is None:
            yield f"{task}: {'new' if expected is None else 'missing'}"
        elif expected != other:
            yield f"{task}: another {', '.join(varied([vars(expected), vars(other)]))}"


def check_first_batch(recorded: RecordedRun, run: Path) -> Check:
    """Compares the episodes of the first training step: their tasks, and texts and rewards where these must be equal.

    Args:
        recorded: the recorded run.
        run: directory of the new one.
    """
    before = _first_batch(recorded.records)
    after = _first_batch(run)
    if not before:
        return Check("first batch", Outcome.NOT_CHECKED, "no recorded episode is here")
    lines = [f"{name}: only in the recorded run" for name in before if name not in after]
    lines += [f"{name}: only in the new run" for name in after if name not in before]
    summary = counted(len(before), "episode")
    reason = why_not_bitwise(recorded.spec)
    if reason is None:
        both = [name for name in before if name in after]
        lines += [f"{name}: other text or reward" for name in both if before[name] != after[name]]
    else:
        summary += f"; their tasks alone: {reason}"
    return _check("first batch", summary, lines)


def _first_batch(run: Path) -> dict[str, tuple[Any, Any]]:
    """Task and sample -> messages and reward, for the episodes of a run's first training step."""
    index = EpisodeIndex(run)
    index.refresh()
    steps = grouped(
        ((entry.attempt, entry.step), number)
        for number, entry in enumerate(index.entries)
        if entry.phase == TRAIN
    )
    if not steps:
        return {}
    batch = steps[min(steps)]
    episodes: dict[str, tuple[Any, Any]] = {}
    for number, record in zip(batch, index.records(batch), strict=True):
        name = f"{index.entries[number].task}, sample {record['sample']}"
        while name in episodes:  # a step may have a task twice
            name += " again"
        episodes[name] = (record["messages"], record["outcome"]["reward"])
    return episodes


def check_weights(recorded: RecordedRun, run: Path) -> Check:
    """Compares the trained weights by their digests."""
    reason = why_not_bitwise(recorded.spec)
    if reason is None and not (recorded.records / "model" / DIGESTS).is_file():
        reason = "no recorded digests are here"
    if reason is not None:
        return Check("weights", Outcome.NOT_CHECKED, reason)
    before = _weights(recorded.records)
    after = _weights(run)
    lines = [f"{name}: another digest" for name in sorted(varied([before, after]))]
    return _check("weights", counted(len(before), "file"), lines)


def _weights(run: Path) -> Mapping[str, str]:
    """File -> sha256 of a run's trained weights."""
    files = json_of(run / "model" / DIGESTS, ExitCode.RUN_DIR, below=run)["files"]
    return {name: digest for name, digest in files.items() if name.endswith(".safetensors")}


def why_not_bitwise(spec: RunSpec) -> str | None:
    """Returns why two trainings of a spec need not have the same bits; None if they must."""
    if spec.backend.name != "trl":
        return f"backend={spec.backend.name}"
    if (
        spec.hardware.accelerator != "cpu"
        or spec.hardware.accelerators_per_node * spec.hardware.num_nodes > 1
    ):
        return "it is not one process on a CPU"
    if spec.model.dtype is not DType.FLOAT32:
        return f"model.dtype={spec.model.dtype}"
    if spec.training.max_staleness:
        return "training.max_staleness: rollouts and updates run at the same time"
    return None
