"""Refusals of a run by its numbers of tasks: the same on every backend."""

from __future__ import annotations

from collections.abc import Iterator

from xp.fields.field import Refusal
from xp.planning.run_size import member_key, num_tasks
from xp.planning.stages import profiles
from xp.spec import RunSpec
from xp.tasks.held_out import evaluation_only
from xp.tasks.training_length import too_few


def size_refusals(spec: RunSpec) -> Iterator[Refusal]:
    """Refusals of splits, evaluations and epochs without enough tasks, and of `profile_refusals`."""
    requested = spec.evaluation.num_tasks
    training = spec.training
    known = num_tasks(spec)
    if requested is not None and known.held_out is not None and requested > known.held_out:
        yield Refusal(
            "evaluation.num_tasks",
            f"asks for {requested} held-out tasks, there are {known.held_out}; set null to take all",
        )
    if spec.evaluation.every is not None and not spec.env.is_held_out:
        yield Refusal(
            "evaluation.every", "env.held_out=null leaves no tasks to evaluate; set one of them"
        )
    if (
        training.epochs is not None
        and known.train is not None
        and known.train < training.prompts_per_step
    ):
        yield Refusal("training.epochs", too_few(known.train, training.prompts_per_step))
    if not any(member.train.split for member in spec.env.members.values()):
        yield Refusal("env.train.split", evaluation_only(None))
    yield from profile_refusals(spec)


def profile_refusals(spec: RunSpec) -> Iterator[Refusal]:
    """Refuses bounds that no task's pass rate meets, and an order that training would not keep."""
    for name, profile in profiles(spec).items():
        train = spec.env.members[name].train
        key = member_key(spec, name)
        low, high = train.pass_rate or (0.0, 1.0)
        below, within, above = profile.counts((low, high))
        if not within:
            yield Refusal(
                f"{key}.train.pass_rate",
                f"no task has a pass rate of {low:g} to {high:g}: of {len(profile.rates)}, {below} are below and"
                f" {above} above; set other bounds, or {key}.train.pass_rate=null",
            )
        if train.easy_first and spec.training.shuffle:
            yield Refusal(
                f"{key}.train.easy_first",
                "training.shuffle=true would change this order; set training.shuffle=false",
            )
