"""Implements `resume=RUN`: a run's recorded spec, with the few changes that keep its episodes comparable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xp.composition import parse_assignments, recorded_with
from xp.errors import ExitCode, XpError
from xp.execution.lock import (
    CHANGEABLE,
    FILE,
    changed_keys,
    is_changeable,
    read_lock,
    recorded_inputs,
)
from xp.execution.run_directory import xp_command
from xp.lib.text import counted
from xp.spec import RunSpec
from xp.spec.section import ADDRESS
from xp.spec.training import LrSchedule

if TYPE_CHECKING:
    from xp.planning.plan import Plan


@dataclass(frozen=True)
class ResumedRun:
    """A run that is resumed."""

    run_id: str
    attempt: int
    """Number of the new attempt."""
    spec: RunSpec
    stages: frozenset[str]
    """Stages of all attempts so far; they show whether the run is a training, a fine-tuning or a preparation."""


def split_off(words: Sequence[str], overrides: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Separates `WORD=value` from the overrides, for words that name a run instead of a key of its spec.

    Raises:
        XpError: (CONFIG) a word has no value, as where a shell's variable is not set.
    """
    pairs = [text.partition("=") for text in overrides]
    empty = [word for word, _, value in pairs if word in words and not value]
    if empty:
        raise XpError(f"{empty[0]}=: it has no value; give one, or leave {empty[0]} out")
    values = {word: value for word, _, value in pairs if word in words and value != "null"}
    return values, [
        text for text, (word, _, _) in zip(overrides, pairs, strict=True) if word not in words
    ]


def spec_to_resume(run: str, overrides: Sequence[str]) -> ResumedRun:
    """Reads a run's spec and applies overrides to it.

    Args:
        run: as `run_directory` takes it.
        overrides: `key=value`; `outputs=DIR` is the outputs root of a run that is given by its name.

    Raises:
        XpError: there is no such run (RUN_DIR), or an override would make it another experiment (CONFIG).
    """
    from xp.composition.points import validated
    from xp.execution.named import run_directory
    from xp.execution.record import read_record
    from xp.execution.run_directory import is_unborn
    from xp.lib.reading import recorded_spec

    values = parse_assignments(overrides)
    for word, text in (("resume", run), ("outputs", str(values.get("outputs", "")))):
        if ADDRESS.match(text):
            raise XpError(
                f"{word}={text}: an address; a run must be in a directory of this machine",
                ExitCode.RUN_DIR,
            )
    outputs = "outputs"
    if "/" not in run:
        outputs = values.get("outputs", outputs)
        overrides = [word for word in overrides if not word.startswith("outputs=")]
    directory = run_directory(Path(outputs), run)
    file = directory / "spec.yaml"
    if not file.is_file():
        raise XpError(
            f"{run}: {file} does not exist; the run cannot be continued without it",
            ExitCode.RUN_DIR,
        )
    container = recorded_spec(file)
    before = validated(container, directory.name).model_dump(mode="json")
    container["outputs"] = str(directory.parent.parent)
    try:
        spec = recorded_with(container, overrides)
    except XpError as error:
        raise XpError(f"{error}\nresume may change {', '.join(CHANGEABLE)}") from error
    _check_kept(directory, before, spec)
    attempts = () if is_unborn(directory) else read_record(directory).attempts
    lengths = (spec.training.num_steps, spec.training.epochs)
    if lengths != (before["training"]["num_steps"], before["training"]["epochs"]):
        trained = next(
            (attempt.training for attempt in reversed(attempts) if attempt.training), None
        )
        _check_length(spec, directory, None if trained is None else trained.num_tasks)
    stages = frozenset(stage.name for attempt in attempts for stage in attempt.stages)
    return ResumedRun(directory.name, len(attempts) + 1, spec, stages)


def other_length_lines(plan: Plan) -> list[str]:
    """A line on what differs from one training of the plan's length, if an attempt before had another length."""
    from xp.episode.metrics_file import read_metrics
    from xp.execution.record import read_record
    from xp.planning.run_size import expected_steps

    run = Path(plan.spec.outputs, "runs", plan.run_id)
    training = plan.spec.training
    steps = expected_steps(plan.spec)
    if plan.attempt == 1 or not steps:
        return []
    trained = {line.get("attempt") for line in read_metrics(run / "metrics.jsonl", "train")}
    lengths = {
        attempt.training.num_steps
        for attempt in read_record(run).attempts
        if attempt.training and attempt.number in trained - {plan.attempt}
    } - {steps}
    schedule = training.lr_schedule
    differing = []
    if schedule is not LrSchedule.CONSTANT:
        before = f"of a training of {' or '.join(map(str, sorted(lengths)))} (training.lr_schedule={schedule})"
        differing.append(f"earlier attempts had the learning rates {before}")
    if training.max_staleness:
        differing.append(
            "the first episodes of this attempt are of newer weights (training.max_staleness)"
        )
    if lengths and differing:
        return [f"differs from one training of {counted(steps, 'step')}: {'; '.join(differing)}"]
    return []


def _check_length(spec: RunSpec, run: Path, num_tasks: int | None) -> None:
    """Raises XpError if a training would have fewer steps than it has made: its model cannot forget them.

    Args:
        spec: spec with the new length.
        run: the run's directory.
        num_tasks: training tasks of its last training, by which epochs are steps. None means that no training has
            begun.
    """
    from xp.episode.metrics_file import last_step
    from xp.tasks.training_length import steps_of

    trained_steps = last_step(run / "metrics.jsonl")
    training = spec.training
    if trained_steps is None:
        return
    if training.epochs is None:
        num_steps = training.num_steps
        key = f"training.num_steps={num_steps}"
        least = trained_steps
    elif num_tasks is None:
        return
    else:
        num_steps = steps_of(training, num_tasks)
        key = f"training.epochs={training.epochs} ({counted(num_steps or 0, 'step')} of {counted(num_tasks, 'task')})"
        least = -(-trained_steps // (num_tasks // training.prompts_per_step))
    if num_steps is not None and num_steps < trained_steps:
        raise XpError(
            f"{key}: {run.name} has made {trained_steps} steps; give {least} or more, or evaluate an"
            f" earlier checkpoint: {xp_command(f'eval run={run.name}@N', run.parent.parent)}"
        )


def _check_kept(directory: Path, before: Mapping[str, Any], spec: RunSpec) -> None:
    """Raises XpError for keys in which a resumed run would be another experiment.

    Args:
        directory: the run's directory, whose lock has the spec that trained, if a training has begun.
        before: the spec of `spec.yaml`, which anybody may have edited.
        spec: spec with the changes of the command line.
    """
    if (directory / FILE).is_file():
        before = recorded_inputs(directory, read_lock(directory).attempt).spec
    changed = [line.partition(": ") for line in changed_keys(before, spec.model_dump(mode="json"))]
    fixed_keys = [(key, change) for key, _, change in changed if not is_changeable(key)]
    if fixed_keys:
        raise XpError(
            "\n".join(
                f"{key}: a resumed run keeps it; start a new run to change it ({change})"
                for key, change in fixed_keys
            )
            + f"\nresume may change {', '.join(CHANGEABLE)}"
        )
