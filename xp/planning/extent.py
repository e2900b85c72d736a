"""Size of a run: numbers of training and evaluation episodes, as far as they are known before tasks are fetched."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from xp.lib.text import counted
from xp.planning.backend import Refusal
from xp.planning.stages.evaluation import rounds
from xp.planning.stages.prepare import profiles, task_set_place
from xp.spec import EnvMember, HeldOutSpec, Overlap, RunSpec, SelectionSpec
from xp.tasks.config import Purpose
from xp.tasks.manifest import read_manifest
from xp.tasks.profile import Profile
from xp.tasks.training_length import too_few


@dataclass(frozen=True)
class NumTasks:
    """Numbers of tasks of the whole mixture; None: unknown before the tasks are fetched."""

    train: int | None
    held_out: int | None


def num_tasks(spec: RunSpec) -> NumTasks:
    """Numbers of tasks from the cached task set, else from the spec."""
    try:
        counts = read_manifest(Path(spec.outputs, task_set_place(spec))).counts
    except (OSError, ValueError):
        return named_tasks(spec)
    found = {purpose: sum(of[purpose].tasks for of in counts.values() if purpose in of) for purpose in Purpose}
    return NumTasks(found[Purpose.TRAIN], found[Purpose.HELD_OUT])


def named_tasks(spec: RunSpec) -> NumTasks:
    """Numbers of tasks that the spec states, as numbers or as lists."""
    members = spec.env.members
    by_profile = {
        name: len(_selected(profile, members[name].train)[: members[name].train.num_tasks])
        for name, profile in profiles(spec).items()
    }
    train = _sum(by_profile.get(name, _named(one.train)) for name, one in members.items())
    return NumTasks(train, _sum(_held_out(one) for one in members.values()))


def _selected(profile: Profile, wanted: SelectionSpec) -> tuple[int, ...]:
    bounds = None if wanted.refresh_every is not None else wanted.pass_rate
    return profile.within(bounds, easy_first=False)


def num_steps(spec: RunSpec) -> int | None:
    """Rollout steps of the run; None: they follow from epochs, and the number of tasks is unknown."""
    training = spec.training
    if training.epochs is None:
        return training.num_steps
    tasks = num_tasks(spec).train
    return None if tasks is None else training.epochs * (tasks // training.prompts_per_step)


def training_line(spec: RunSpec) -> str:
    """One line about the length of the run."""
    training, steps = spec.training, num_steps(spec)
    episodes = training.prompts_per_step * training.group_size
    updates = training.updates_per_step * training.passes_per_step
    epochs = counted(training.epochs or 0, "epoch")
    rate = f"learning rate {training.learning_rate:g}"
    if steps is None:
        return f"the run: steps: {epochs} of the task set, known after prepare; {rate}"
    how = "" if training.epochs is None else f" ({epochs} of {counted(num_tasks(spec).train or 0, 'task')})"
    size = f"{counted(steps * episodes, 'episode')}, {counted(steps * updates, 'update')}"
    if training.warmup_updates > steps * updates:
        rate += f", which the warm-up of {counted(training.warmup_updates, 'update')} does not reach"
    return f"the run: {counted(steps, 'step')}{how} = {size} at {rate}"


def turn_lines(spec: RunSpec) -> list[str]:
    """A line about a limit of a turn that no turn reaches; empty if the limit has an effect."""
    turn, response = spec.training.max_tokens_per_turn, spec.training.max_response_tokens
    if turn <= response:
        return []
    return [
        f"training.max_tokens_per_turn={turn} has no effect: training.max_response_tokens={response} ends every turn"
        " before; lower the first, or raise the second"
    ]


@dataclass(frozen=True)
class Evaluated:
    """Size of the evaluations in a run."""

    num_tasks: int
    samples_per_task: int
    before: int
    during: int | None
    """Number of evaluations during training on this backend; None: the number of steps is unknown."""
    num_trained: int | None
    """Number of training episodes; None: unknown."""

    @property
    def episodes(self) -> int:
        """Number of episodes of one evaluation."""
        return self.num_tasks * self.samples_per_task

    @property
    def total(self) -> int | None:
        """Number of episodes of all evaluations; None: unknown."""
        return None if self.during is None else self.episodes * (self.before + self.during + 1)

    @property
    def share(self) -> float | None:
        """Share of evaluation episodes among all episodes of the run; None: unknown."""
        if self.total is None or self.num_trained is None:
            return None
        return self.total / (self.total + self.num_trained)


def evaluated(spec: RunSpec) -> Evaluated | None:
    """Size of the evaluations; None if the number of held-out tasks is unknown, or nothing is held out."""
    from xp.planning.backend import backend_of

    held_out, size, training = num_tasks(spec).held_out, rounds(spec), spec.training
    if not held_out:
        return None
    steps = num_steps(spec)
    during = backend_of(spec).evaluations(spec, steps) if steps is not None else None
    return Evaluated(
        num_tasks=held_out if size.num_tasks is None else min(size.num_tasks, held_out),
        samples_per_task=size.samples_per_task,
        before=int(spec.evaluation.before_training),
        during=0 if spec.evaluation.every is None else during,
        num_trained=None if steps is None else steps * training.prompts_per_step * training.group_size,
    )


def evaluation_line(spec: RunSpec) -> str:
    """One line about the evaluations of a run: tasks, number of evaluations, and their share of all episodes."""
    if not spec.env.is_held_out:
        return "evaluation: none before or after training, since there are no held-out tasks (env.held_out=null)"
    found, every = evaluated(spec), spec.evaluation.every
    samples = counted(spec.evaluation.samples_per_task, "episode")
    if found is None:
        wanted = spec.evaluation.num_tasks
        which = "each held-out task" if wanted is None else f"{counted(wanted, 'held-out task')} at most"
        return f"evaluation: {samples} of {which}; how many there are is known after prepare"
    most = "" if spec.evaluation.patience is None else "at most "
    while_training = f"every {counted(every or 0, 'step')}"
    if found.during is not None:
        while_training = f"{most}{counted(found.during, 'time')} during"
    times = ["before"] * found.before + [while_training] * (found.during != 0) + ["after training"]
    when = f"{', '.join(times[:-1])} and {times[-1]}" if times[1:] else times[0]
    size = f"{counted(found.num_tasks, 'held-out task')} x {samples} = {counted(found.episodes, 'episode')}, {when}"
    if found.share is None:
        return f"evaluation: {size}"
    share = f"{found.share:.0%}" if found.share >= 0.005 else "under 1%"
    return f"evaluation: {size}: {counted(found.total or 0, 'episode')}, {share} of the run's"


def extent_refusals(spec: RunSpec, *, trains: bool) -> Iterator[Refusal]:
    """Refusals that are the same on every backend; `trains` False: no tasks are needed for steps."""
    wanted, training, known = spec.evaluation.num_tasks, spec.training, num_tasks(spec)
    if wanted is not None and known.held_out is not None and wanted > known.held_out:
        way_out = f"set {known.held_out}, or null for all" if known.held_out else "set it to null"
        yield Refusal("evaluation.num_tasks", f"{wanted} of {known.held_out} held-out tasks; {way_out}")
    if spec.evaluation.every is not None and not spec.env.is_held_out:
        yield Refusal("evaluation.every", "env.held_out=null leaves no tasks to evaluate; set one of them")
    if trains and training.epochs is not None and known.train is not None and known.train < training.prompts_per_step:
        yield Refusal("training.epochs", too_few(known.train, training.prompts_per_step))


def _named(selection: SelectionSpec | HeldOutSpec) -> int | None:
    return selection.num_tasks if selection.indices is None else len(set(selection.indices))


def _held_out(member: EnvMember) -> int | None:
    """Number of a member's held-out tasks; None for a share, whose num_tasks is only a bound."""
    wanted = member.held_out
    if wanted is None:
        return 0
    is_in_train = wanted.split in member.train.split and wanted.indices is None and wanted.overlap is Overlap.FORBIDDEN
    return None if wanted.split is None or is_in_train else _named(wanted)


def _sum(numbers: Iterable[int | None]) -> int | None:
    known = list(numbers)
    return None if None in known else sum(number for number in known if number is not None)
