"""The rewards of an evaluation by its name: one of `xp eval`, or a run's own, for comparing them task by task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xp.errors import ExitCode, XpError
from xp.evaluation.paired import Paired, compare, holm
from xp.evaluation.records import SUMMARY, evaluation_place, read_summary
from xp.evaluation.statistics import Rewards
from xp.reading import json_of
from xp.runs.held_out import evaluation_files
from xp.runs.record import directory_of


@dataclass(frozen=True)
class NamedResult:
    """One evaluation."""

    name: str
    rewards: Rewards
    hashes: Mapping[str, str]
    """Task -> digest of its content; empty: not on record."""
    pass_threshold: float


def compare_all(outputs: Path, names: Sequence[str], margin: float) -> list[Paired]:
    """The first one against each other; of one run alone, its model before training against the trained one.

    Raises:
        XpError: RUN_DIR for what does not exist, PLAN where the tasks differ.
    """
    wanted = [f"{names[0]}@0", names[0]] if len(names) == 1 else list(names)
    first, *others = [named(outputs, name) for name in wanted]
    for other in others:
        _check_content(first, other)
    return holm(
        [
            compare((first.name, other.name), first.rewards, other.rewards, first.pass_threshold, margin)
            for other in others
        ]
    )


def named(outputs: Path, name: str) -> NamedResult:
    """An evaluation's or a run's rewards; `RUN@0` are those of its model before training."""
    place = evaluation_place(outputs, name)
    if place is not None:
        if not (place / SUMMARY).exists():
            raise XpError(f"{name} is not finished; call the same `eval` again", ExitCode.RUN_DIR)
        value = read_summary(place / SUMMARY)
        rewards = {task: one["rewards"] for task, one in value["tasks"].items()}
        hashes = {task: one["hash"] for task, one in value["tasks"].items()}
        return NamedResult(name, rewards, hashes, value["summary"]["pass_threshold"])
    run, _, step = name.partition("@")
    if step not in ("", "0"):
        raise XpError(f"{name}: a checkpoint is compared by its evaluation: python -m xp eval run={name}")
    return _of_run(directory_of(outputs, run), name, "before" if step else "after")


def _of_run(directory: Path, name: str, which: str) -> NamedResult:
    """The newest result of the run's own evaluations that holds each task's rewards."""
    for file in reversed(evaluation_files(directory)):
        results: Any = json_of(file, ExitCode.RUN_DIR).get("results", {})
        found = results.get(which)
        if found is None:
            continue
        if "tasks" not in found:
            raise XpError(f"{file} is of an earlier version and has no rewards by task; evaluate it again with `eval`")
        return NamedResult(name, found["tasks"], {}, found["pass_threshold"])
    raise XpError(f"{name}: the run has no evaluation {which} training; python -m xp eval run={name}", ExitCode.RUN_DIR)


def _check_content(first: NamedResult, other: NamedResult) -> None:
    both = set(first.hashes) & set(other.hashes)
    changed = sorted(task for task in both if first.hashes[task] != other.hashes[task])
    if changed:
        raise XpError(
            f"{first.name} and {other.name}: {len(changed)} tasks have another content under the same name"
            f" ({changed[0]}, ...): the environment changed, so that nothing is paired",
            ExitCode.PLAN,
        )
