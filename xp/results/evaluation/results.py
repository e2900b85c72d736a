"""Finds the rewards of an evaluation by name (of `xp eval`, or of a run) for comparisons task by task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from xp.episode.evaluation import RECORD, EvaluationRecord, read_evaluation
from xp.errors import ExitCode, XpError
from xp.execution.held_out import evaluation_files, scoring_differences
from xp.execution.named import EVALUATIONS, RUNS, chosen, known_names, run_directory
from xp.lib.text import counted, first_of
from xp.results.evaluation.paired import SHOWN, PairedComparison, compare, holm
from xp.results.evaluation.records import evaluation_directory


@dataclass(frozen=True)
class NamedRecord:
    """The record of one evaluation, with the name that a command line gives it."""

    name: str
    record: EvaluationRecord
    of_run: str | None = None
    """`RUN` or `RUN@0`, if it is of a run's own evaluation."""


def compare_all(outputs: Path, names: Sequence[str], margin: float) -> list[PairedComparison]:
    """Compares each evaluation with the first one; for a single run, its trained model with the untrained one.

    Raises:
        XpError: RUN_DIR for a name that does not exist, PLAN if the tasks differ.
    """
    full_names = whole_names(outputs, names)
    if len(full_names) == 1:
        if evaluation_directory(outputs, full_names[0]) is not None:
            raise XpError(
                f"compare --paired: {full_names[0]} is one evaluation; name another one, or a run, beside it"
            )
        full_names = [f"{full_names[0]}@0", full_names[0]]
    first, *others = [named(outputs, name) for name in full_names]
    return holm([compare_named(first, other, margin) for other in others])


def before_and_after(run: Path, margin: float) -> PairedComparison:
    """Compares a run's trained model with the untrained one; raises XpError as `compare_all` does.

    The run is given by its directory, since finding a name lists all runs.
    """
    sides = (of_run(run, f"{run.name}@0", "before"), of_run(run, run.name, "after"))
    return compare_named(*sides, margin)


def compare_named(first: NamedRecord, other: NamedRecord, margin: float) -> PairedComparison:
    """Compares two evaluations; raises XpError(PLAN) if the tasks, their contents, or what decides the rewards
    differ."""
    differences = scoring_differences([first.record.scoring, other.record.scoring])
    if differences:
        raise XpError(
            f"{first.name} and {other.name}: their rewards are not on one scale, so that nothing is compared: these"
            f" differ: {', '.join(differences.values())}\nevaluate both with one reward: python -m xp eval run=RUN,RUN"
            " env.reward_fn=null, or with the same env.reward and code",
            ExitCode.PLAN,
        )
    check_content(first, other)
    return compare(
        (first.name, other.name),
        first.record.rewards,
        other.record.rewards,
        first.record.summary.pass_threshold,
        margin,
    )


def whole_names(outputs: Path, words: Sequence[str]) -> list[str]:
    """Full names of runs and evaluations, from names, beginnings, patterns or directories; each name once.

    Raises:
        XpError: (RUN_DIR) a word matches no name, or is the beginning of several.
    """
    rooms = (RUNS, EVALUATIONS)
    known = known_names(outputs, rooms)
    full_names: list[str] = []
    for word in words:
        base, at, step = word.partition("@")
        if "/" in base and evaluation_directory(outputs, word) is not None:
            full_names.append(word)
        else:
            full_names += [f"{name}{at}{step}" for name in chosen(outputs, base, known, rooms)]
    return list(dict.fromkeys(full_names))


def named(outputs: Path, name: str) -> NamedRecord:
    """Rewards of an evaluation or a run; `RUN@0` means its model before training."""
    directory = evaluation_directory(outputs, name)
    if directory is not None:
        if not (directory / RECORD).exists():
            raise XpError(f"{name} is not finished; call the same `eval` again", ExitCode.RUN_DIR)
        return NamedRecord(name, read_evaluation(directory / RECORD))
    run, _, step = name.partition("@")
    if step not in ("", "0"):
        raise XpError(
            f"{name}: a checkpoint is compared by its evaluation: python -m xp eval run={name}"
        )
    return of_run(run_directory(outputs, run), name, "before" if step else "after")


def of_run(directory: Path, name: str, which: str) -> NamedRecord:
    """The newest result of the run's own evaluations with each task's rewards."""
    file = evaluation_files(directory).get(which)
    if file is None:
        text = f"the run has no evaluation {which} training; make one: python -m xp eval run={name}"
        raise XpError(f"{name}: {text}", ExitCode.RUN_DIR)
    return NamedRecord(name, read_evaluation(file), of_run=name)


def check_content(first: NamedRecord, other: NamedRecord) -> None:
    """Raises XpError(PLAN) if tasks of the same name differ in content."""
    of_first = first.record.tasks
    of_other = other.record.tasks
    common = of_first.keys() & of_other.keys()
    changed = sorted(task for task in common if of_first[task].hash != of_other[task].hash)
    if changed:
        text = (
            f"{first.name} and {other.name}: {counted(len(changed), 'task')} have another content under the same name,"
            f" so that nothing is paired: {first_of(changed, SHOWN)}\n"
            "the environment changed between the two; evaluate both on one version of it, and compare these evaluations"
        )
        runs = ",".join(result.of_run for result in (first, other) if result.of_run is not None)
        if runs:
            text += f"\nplay the tasks as they are now: python -m xp eval run={runs}"
        raise XpError(text, ExitCode.PLAN)
