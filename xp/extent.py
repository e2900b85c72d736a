"""How much a run plays, how much of it is evaluation, and what of that is known before the tasks are fetched."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from xp.backends.base import Refusal
from xp.spec import EnvMember, HeldOut, Overlap, RunSpec, Selection
from xp.stages.evaluation import rounds
from xp.stages.prepare import task_set_place
from xp.tasks.config import Purpose
from xp.tasks.manifest import read_manifest


@dataclass(frozen=True)
class NumTasks:
    """Of the whole mix; None: not known before the tasks are fetched."""

    train: int | None
    held_out: int | None


def num_tasks(spec: RunSpec) -> NumTasks:
    """As the cached task set has them, else as the spec names them."""
    try:
        counts = read_manifest(Path(spec.outputs, task_set_place(spec))).counts
    except (OSError, ValueError):
        return named_tasks(spec)
    found = {purpose: sum(of[purpose].tasks for of in counts.values() if purpose in of) for purpose in Purpose}
    return NumTasks(found[Purpose.TRAIN], found[Purpose.HELD_OUT])


def named_tasks(spec: RunSpec) -> NumTasks:
    """What the spec alone says: numbers of tasks and lists of them."""
    members = spec.env.members.values()
    return NumTasks(_sum(_named(one.train) for one in members), _sum(_held_out(one) for one in members))


@dataclass(frozen=True)
class Evaluated:
    """How much evaluation a run has."""

    num_tasks: int
    samples_per_task: int
    before: int
    during: int
    """Evaluations while training, as this backend counts them."""
    share: float
    """Of all episodes of the run."""

    @property
    def episodes(self) -> int:
        """Of one evaluation."""
        return self.num_tasks * self.samples_per_task

    @property
    def total(self) -> int:
        return self.episodes * (self.before + self.during + 1)


def evaluated(spec: RunSpec) -> Evaluated | None:
    """None where the number of held-out tasks is not known yet, or nothing is held out."""
    from xp.plan import render_module

    held_out, training, size = num_tasks(spec).held_out, spec.training, rounds(spec)
    if not held_out:
        return None
    played = held_out if size.num_tasks is None else min(size.num_tasks, held_out)
    during = render_module(spec).evaluations(spec, training.num_steps)
    before = int(spec.evaluation.before_training)
    total = played * size.samples_per_task * (before + during + 1)
    trained = training.num_steps * training.prompts_per_step * training.group_size
    return Evaluated(played, size.samples_per_task, before, during, total / (total + trained))


def evaluation_line(spec: RunSpec) -> str:
    """What is evaluated, when, and how much of the run that is."""
    if not spec.env.is_held_out:
        return "evaluation: none before or after training, since nothing is held out (env.held_out=null)"
    samples = f"{spec.evaluation.samples_per_task} episode{'s' if spec.evaluation.samples_per_task > 1 else ''}"
    found = evaluated(spec)
    if found is None:
        wanted = spec.evaluation.num_tasks
        which = "each held-out task" if wanted is None else f"{wanted} held-out tasks at most"
        return f"evaluation: {samples} of {which}; how many there are is known after prepare"
    times = ["before"] * found.before + [f"{found.during} times during"] * (found.during > 0) + ["after training"]
    when = f"{', '.join(times[:-1])} and {times[-1]}" if times[1:] else times[0]
    return (
        f"evaluation: {found.num_tasks:,} held-out tasks x {samples} = {found.episodes:,} episodes, {when}:"
        f" {found.total:,} episodes, {found.share:.0%} of the run's"
    )


def extent_refusals(spec: RunSpec) -> Iterator[Refusal]:
    """What cannot be played, whatever the backend."""
    wanted, held_out = spec.evaluation.num_tasks, num_tasks(spec).held_out
    if wanted is not None and held_out is not None and wanted > held_out:
        way_out = f"set {held_out}, or null for all" if held_out else "set it to null"
        yield Refusal("evaluation.num_tasks", f"{wanted} of {held_out} held-out tasks; {way_out}")
    if spec.evaluation.every is not None and not spec.env.is_held_out:
        yield Refusal("evaluation.every", "env.held_out=null holds nothing out to evaluate on; set one of them")


def _named(selection: Selection | HeldOut) -> int | None:
    return selection.num_tasks if selection.indices is None else len(set(selection.indices))


def _held_out(member: EnvMember) -> int | None:
    """A share is not known before it is chosen: its num_tasks only bounds it."""
    wanted = member.held_out
    if wanted is None:
        return 0
    is_in_train = wanted.split in member.train.split and wanted.indices is None and wanted.overlap is Overlap.FORBIDDEN
    return None if wanted.split is None or is_in_train else _named(wanted)


def _sum(numbers: Iterable[int | None]) -> int | None:
    known = list(numbers)
    return None if None in known else sum(number for number in known if number is not None)
