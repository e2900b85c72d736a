"""Lines of a plan about the size of a run: steps, evaluations, held-out tasks and profiled tasks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from xp.envs.rows import HELD_OUT_SPLITS
from xp.lib.text import counted
from xp.planning.run_size import (
    evaluation_episodes,
    expected_steps,
    expected_tasks,
    num_evaluations_during,
)
from xp.planning.stages import prepared_set, profiles
from xp.spec import HeldOutSpec, RunSpec
from xp.tasks.held_out import HeldOutRecord


def training_line(spec: RunSpec) -> str:
    """One line about the length of the run."""
    training = spec.training
    steps = expected_steps(spec)
    episodes = training.episodes_per_step
    updates = training.all_updates_per_step
    epochs = counted(training.epochs or 0, "epoch")
    rate = f"learning rate {training.learning_rate:g}"
    if steps is None:
        return f"the run: {epochs}; number of steps known after prepare; {rate}"
    how = ""
    if training.epochs is not None:
        how = f" ({epochs} of {counted(expected_tasks(spec).train or 0, 'task')})"
    size = f"{counted(steps * episodes, 'episode')}, {counted(steps * updates, 'update')}"
    if training.warmup_updates > steps * updates:
        rate += (
            f", which the warm-up of {counted(training.warmup_updates, 'update')} does not reach"
        )
    return f"the run: {counted(steps, 'step')}{how} = {size} at {rate}"


def evaluation_line(spec: RunSpec) -> str:
    """One line about the evaluations of a run: tasks, number of evaluations, and their share of all episodes."""
    if not spec.env.is_held_out:
        return "evaluation: none before or after training, since there are no held-out tasks (env.held_out=null)"
    evaluation = spec.evaluation
    steps = expected_steps(spec)
    during = num_evaluations_during(spec)
    samples = counted(evaluation.samples_per_task, "episode")
    num_held_out = expected_tasks(spec).held_out
    if not num_held_out:
        which = "each held-out task"
        if evaluation.num_tasks is not None:
            which = f"{counted(evaluation.num_tasks, 'held-out task')} at most"
        return f"evaluation: {samples} of {which}; number of tasks known after prepare"
    tasks = min(evaluation.num_tasks or num_held_out, num_held_out)
    episodes = tasks * evaluation.samples_per_task
    size = f"{counted(tasks, 'held-out task')} x {samples} = {counted(episodes, 'episode')}, {_when(spec, during)}"
    if evaluation.samples_per_task == 1 and spec.env.scores_groups:
        size += ", without rewards of groups (evaluation.samples_per_task)"
    if (evaluation.num_tasks or 0) > num_held_out:
        size += f", fewer tasks than evaluation.num_tasks={evaluation.num_tasks}"
    total = evaluation_episodes(spec)
    if total is None or steps is None:
        return f"evaluation: {size}"
    share = total / (total + steps * spec.training.episodes_per_step)
    percent = f"{share:.0%}" if share >= 0.005 else "under 1%"
    return f"evaluation: {size}: {counted(total, 'episode')}, {percent} of the run's"


def _when(spec: RunSpec, during: int | None) -> str:
    """Text about the times of the evaluations; `during` None: their number during training is unknown."""
    times = ["before"] if spec.evaluation.before_training else []
    if during is None:
        times.append(f"every {counted(spec.evaluation.every or 0, 'step')}")
    elif during:
        most = "" if spec.evaluation.patience is None else "at most "
        times.append(f"{most}{counted(during, 'time')} during")
    if times:
        return f"{', '.join(times)} and after training"
    return "after training"


def held_out_lines(spec: RunSpec, outputs: Path) -> list[str]:
    """One line for each environment: the rule of its held-out tasks, with numbers if the set is cached."""
    manifest = prepared_set(spec, outputs)
    known: Mapping[str, HeldOutRecord] = {}
    if manifest is not None:
        known = manifest.held_out
    is_mix = len(spec.env.members) > 1
    return [
        f"held out{f' of {name}' if is_mix else ''}: {known[name].line() if name in known else _rule(member.held_out)}"
        for name, member in spec.env.members.items()
    ]


def profile_lines(spec: RunSpec) -> list[str]:
    """One line for each environment whose training tasks are selected by their pass rates."""
    lines = []
    for name, profile in profiles(spec).items():
        train = spec.env.members[name].train
        low, high = train.pass_rate or (0.0, 1.0)
        below, within, above = profile.counts((low, high))
        left = min(within, train.num_tasks or within)
        order = ", those that passed most often first" if train.easy_first else ""
        lines.append(
            f"training tasks of {name}: {left} of {len(profile.rates)} profiled ({profile.model}, {profile.num_tries}"
            f" tries): {within} with a pass rate of {low:g} to {high:g}, {below} below, {above} above{order}"
        )
    return lines


def _rule(held_out: HeldOutSpec | None) -> str:
    if held_out is None:
        return "nothing (held_out=null)"
    if held_out.split is None:
        splits = ", ".join(HELD_OUT_SPLITS[:-1])
        return (
            f"the environment's own {splits} or {HELD_OUT_SPLITS[-1]}, else {held_out.fraction:g} of its training tasks"
            " by hash; known after prepare"
        )
    overlap = ", which training leaves in (overlap=allowed)" if held_out.may_overlap else ""
    return f"of split {held_out.split}{overlap}; known after prepare"
