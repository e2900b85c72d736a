"""Finds the rewards of an evaluation by name (of `xp eval`, or of a run) for comparisons task by task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from xp.counted import counted
from xp.errors import ExitCode, XpError, nearest
from xp.evaluation.paired import SHOWN, Paired, compare, holm
from xp.evaluation.records import ROOM, SUMMARY, evaluation_place, read_summary
from xp.evaluation.statistics import Rewards
from xp.runs.held_out import evaluation_files, read_rewards, rewards_by_task
from xp.runs.record import FILE, directory_of


@dataclass(frozen=True)
class NamedResult:
    """Rewards of one evaluation."""

    name: str
    rewards: Rewards
    hashes: Mapping[str, str]
    """Task -> digest of its content."""
    pass_threshold: float
    file: Path
    """File of the evaluation."""


def compare_all(outputs: Path, names: Sequence[str], margin: float) -> list[Paired]:
    """Compares each evaluation with the first one; for a single run, its trained model with the untrained one.

    Raises:
        XpError: RUN_DIR for a name that does not exist, PLAN if the tasks differ.
    """
    wanted = whole_names(outputs, names)
    if len(wanted) == 1:
        if evaluation_place(outputs, wanted[0]) is not None:
            raise XpError(f"compare --paired: {wanted[0]} is one evaluation; name another one, or a run, beside it")
        wanted = [f"{wanted[0]}@0", wanted[0]]
    first, *others = [named(outputs, name) for name in wanted]
    return holm([compare_named(first, other, margin) for other in others])


def compare_named(first: NamedResult, other: NamedResult, margin: float) -> Paired:
    """Compares two evaluations; raises XpError(PLAN) if the tasks or their contents differ."""
    _check_content(first, other)
    return compare((first.name, other.name), first.rewards, other.rewards, first.pass_threshold, margin)


def whole_names(outputs: Path, words: Sequence[str]) -> list[str]:
    """Full names of runs and evaluations, from names, beginnings, patterns or directories; each name once.

    Raises:
        XpError: (RUN_DIR) a word matches no name, or is the beginning of several.
    """
    evaluations = [path.parent.name for path in (outputs / ROOM).glob(f"*/{SUMMARY}")]
    runs = [path.parent.name for path in (outputs / "runs").glob(f"*/{FILE}")]
    known = sorted({*evaluations, *runs})
    return list(dict.fromkeys(name for word in words for name in _of_word(outputs, word, known)))


def _of_word(outputs: Path, word: str, known: Sequence[str]) -> list[str]:
    own, at, step = word.partition("@")
    if own in known or evaluation_place(outputs, word) is not None:
        return [word]
    is_pattern = any(character in own for character in "*?[")
    found = [name for name in known if (fnmatchcase(name, own) if is_pattern else name.startswith(own))]
    if len(found) > 1 and not is_pattern:
        few = ", ".join(found[:3])
        raise XpError(f"{own} is the beginning of {len(found)} names: {few}, ...; '{own}*' takes all", ExitCode.RUN_DIR)
    if not found:
        raise XpError(
            f"no such run or evaluation: {own}{nearest(own, known)}; python -m xp runs list and"
            " python -m xp eval list name them",
            ExitCode.RUN_DIR,
        )
    return [f"{name}{at}{step}" for name in found]


def named(outputs: Path, name: str) -> NamedResult:
    """Rewards of an evaluation or a run; `RUN@0` means its model before training."""
    place = evaluation_place(outputs, name)
    if place is not None:
        if not (place / SUMMARY).exists():
            raise XpError(f"{name} is not finished; call the same `eval` again", ExitCode.RUN_DIR)
        value = read_summary(place / SUMMARY)
        rewards = rewards_by_task({task: one["rewards"] for task, one in value["tasks"].items()})
        hashes = {task: str(one["hash"]) for task, one in value["tasks"].items()}
        return NamedResult(name, rewards, hashes, float(value["summary"]["pass_threshold"]), place / SUMMARY)
    run, _, step = name.partition("@")
    if step not in ("", "0"):
        raise XpError(f"{name}: a checkpoint is compared by its evaluation: python -m xp eval run={name}")
    return _of_run(directory_of(outputs, run), name, "before" if step else "after")


def _of_run(directory: Path, name: str, which: str) -> NamedResult:
    """The newest result of the run's own evaluations with each task's rewards."""
    for file in reversed(evaluation_files(directory)):
        found = read_rewards(file, which)
        if found is not None:
            return NamedResult(name, found.rewards, found.hashes, found.pass_threshold, file)
    raise XpError(f"{name}: the run has no evaluation {which} training; python -m xp eval run={name}", ExitCode.RUN_DIR)


def _check_content(first: NamedResult, other: NamedResult) -> None:
    """Raises XpError(PLAN) if tasks of the same name differ in content."""
    tasks = first.rewards.keys() & other.rewards.keys()
    changed = sorted(task for task in tasks if first.hashes.get(task) != other.hashes.get(task))
    if changed:
        more = f" and {len(changed) - SHOWN} more" if len(changed) > SHOWN else ""
        runs = ",".join(one.name for one in (first, other) if one.file.name != SUMMARY)
        again = f"\npython -m xp eval run={runs} plays the tasks as they are now" if runs else ""
        raise XpError(
            f"{first.name} and {other.name}: {counted(len(changed), 'task')} have another content under the same name,"
            f" so that nothing is paired: {', '.join(changed[:SHOWN])}{more}\n"
            f"the environment changed between the two; evaluate both on one version of it, and compare these"
            f" evaluations{again}",
            ExitCode.PLAN,
        )
