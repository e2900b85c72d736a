"""Numbers of tasks, steps and episodes of a run, as far as they are known before tasks are fetched."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from xp.fields.shared import has_kl
from xp.planning.stages import prepare_config, prepared_set
from xp.spec import EnvMember, HeldOutSpec, Overlap, RunSpec, SelectionSpec
from xp.spec.hardware import base_values
from xp.spec.tasks import BY_PASS_RATE
from xp.tasks.config import Purpose

BY_PASS_RATE_ALONE = ("curriculum_bounds", "curriculum_exploration", "curriculum_forget")
"""Settings of `env.train` that `curriculum=pass_rate` alone reads."""


@dataclass(frozen=True)
class NumTasks:
    """Numbers of tasks of the whole mixture. None means that they are unknown before the tasks are fetched."""

    train: int | None
    held_out: int | None


def num_tasks(spec: RunSpec) -> NumTasks:
    """Numbers of tasks that the spec names: what a trainer receives and what is refused depend on no task set."""
    train = _sum(_named(member.train) for member in prepare_config(spec).members.values())
    return NumTasks(train, _sum(_held_out(member) for member in spec.env.members.values()))


def expected_tasks(spec: RunSpec) -> NumTasks:
    """Numbers of tasks of the prepared task set, else of the spec, for lines and estimates."""
    manifest = prepared_set(spec, Path(spec.outputs))
    if manifest is None:
        return num_tasks(spec)
    sums = {
        purpose: sum(of[purpose].tasks for of in manifest.counts.values() if purpose in of)
        for purpose in Purpose
    }
    return NumTasks(sums[Purpose.TRAIN], sums[Purpose.HELD_OUT])


def num_steps(spec: RunSpec) -> int | None:
    """Rollout steps of the run. None means that they follow from epochs, and the spec names no number of tasks."""
    return _steps(spec, num_tasks(spec))


def expected_steps(spec: RunSpec) -> int | None:
    """Rollout steps by the prepared task set too, for lines and estimates. None means that they are not known."""
    return _steps(spec, expected_tasks(spec))


def _steps(spec: RunSpec, tasks: NumTasks) -> int | None:
    training = spec.training
    if training.epochs is None:
        return training.num_steps
    if tasks.train is None:
        return None
    return training.epochs * (tasks.train // training.prompts_per_step)


def ineffective_lines(spec: RunSpec) -> list[str]:
    """A line about each setting that has no effect beside the others."""
    turn = spec.training.max_tokens_per_turn
    response = spec.training.max_response_tokens
    algorithm = spec.algorithm
    lines = []
    if turn > response:
        lines.append(
            f"training.max_tokens_per_turn={turn} has no effect: training.max_response_tokens={response} ends every"
            " turn before; lower the first, or raise the second"
        )
    for name, kind, value in (
        ("importance", "correction", "token_truncate"),
        ("mask", "mask", "token"),
    ):
        bounds = (f"{name}_lower", f"{name}_upper")
        is_changed = any(getattr(algorithm, key) != base_values("algorithm")[key] for key in bounds)
        if getattr(algorithm, f"importance_{kind}") == "none" and is_changed:
            lines.append(
                f"algorithm.{name}_lower and {name}_upper have no effect: algorithm.importance_{kind}=none; set"
                f" {value}, or another one"
            )
    if algorithm.use_kl_in_reward and not has_kl(spec):
        lines.append(
            "algorithm.use_kl_in_reward has no effect: training.kl_coef=0; set training.kl_coef"
        )
    for member, env in spec.env.members.items():
        key = f"{member_key(spec, member)}.train"
        selection = env.train.model_dump(mode="json", include={*BY_PASS_RATE_ALONE})
        usual = base_values("env")["train"]
        unused = [name for name in BY_PASS_RATE_ALONE if selection[name] != usual[name]]
        if unused and env.train.curriculum != BY_PASS_RATE:
            lines.append(
                f"{key}.{unused[0]} has no effect: {key}.curriculum={env.train.curriculum or 'none'}; set"
                f" {BY_PASS_RATE}"
            )
    return lines


def evaluation_episodes(spec: RunSpec) -> int | None:
    """Episodes of all evaluations of a run. None means that the number of tasks or steps is not known."""
    evaluation = spec.evaluation
    during = num_evaluations_during(spec)
    if not spec.env.is_held_out:
        return 0
    held_out = expected_tasks(spec).held_out
    known = [number for number in (evaluation.num_tasks, held_out) if number]
    if during is None or not known:
        return None
    return min(known) * evaluation.samples_per_task * (evaluation.before_training + during + 1)


def num_evaluations_during(spec: RunSpec) -> int | None:
    """Number of evaluations during training; after the last step is that of the trained model. None means that the
    number of steps is not known."""
    every = spec.evaluation.every
    steps = expected_steps(spec)
    if every is None:
        return 0
    if steps is None:
        return None
    return (steps - 1) // every


def _named(selection: SelectionSpec | HeldOutSpec) -> int | None:
    if selection.indices is None:
        return selection.num_tasks
    return len(set(selection.indices))


def _held_out(member: EnvMember) -> int | None:
    """Number of a member's held-out tasks; None for a share, whose num_tasks is only a bound."""
    rule = member.held_out
    if rule is None:
        return 0
    is_in_train = (
        rule.split in member.train.split
        and rule.indices is None
        and rule.overlap is Overlap.FORBIDDEN
    )
    if rule.split is None or is_in_train:
        return None
    return _named(rule)


def _sum(numbers: Iterable[int | None]) -> int | None:
    known = list(numbers)
    if None in known:
        return None
    return sum(number for number in known if number is not None)


def member_key(spec: RunSpec, name: str) -> str:
    """Key path of a member, as a user of one environment or of a mixture writes it."""
    if len(spec.env.members) == 1:
        return "env"
    return f"env.members.{name}"
