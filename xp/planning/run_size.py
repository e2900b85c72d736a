"""Size of a run: tasks, splits, steps and episodes, as far as they are known before tasks are fetched."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from xp.envs.config import EnvConfig
from xp.envs.graders import CHECKED, check_answers
from xp.envs.rows import HELD_OUT_SPLITS, line_of, load_rows, name_of
from xp.fields.field import Refusal
from xp.fields.shared import has_kl
from xp.lib.codec import decode
from xp.lib.data_files import check_loader, is_set, names_of, path_of
from xp.lib.packages import require
from xp.lib.text import counted
from xp.planning.episode import episode_config
from xp.planning.stages import prepare_config, prepared_set, profiles
from xp.spec import EnvMember, HeldOutSpec, LauncherName, Overlap, RunSpec, SelectionSpec
from xp.spec.tasks import BY_PASS_RATE
from xp.tasks.config import Purpose
from xp.tasks.held_out import HeldOutRecord, evaluation_only
from xp.tasks.training_length import too_few

BOUNDS = (0.0, 2.0)
"""Bounds of an importance weight, and of a mask, in conf/algorithm/_base.yaml."""
CURRICULUM = {
    "curriculum_bounds": (0.1, 0.9),
    "curriculum_exploration": 0.25,
    "curriculum_forget": None,
}
"""Settings of `curriculum=pass_rate` alone, with their values in conf/env/_base.yaml."""


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
        bounds = tuple(getattr(algorithm, f"{name}_{end}") for end in ("lower", "upper"))
        if getattr(algorithm, f"importance_{kind}") == "none" and bounds != BOUNDS:
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
        unused = [name for name, value in CURRICULUM.items() if getattr(env.train, name) != value]
        if unused and env.train.curriculum != BY_PASS_RATE:
            lines.append(
                f"{key}.{unused[0]} has no effect: {key}.curriculum={env.train.curriculum or 'none'}; set"
                f" {BY_PASS_RATE}"
            )
    return lines


def evaluation_episodes(spec: RunSpec) -> int | None:
    """Episodes of all evaluations of a run. None means that the number of tasks or steps is not known."""
    evaluation = spec.evaluation
    during = _num_during(spec)
    if not spec.env.is_held_out:
        return 0
    held_out = expected_tasks(spec).held_out
    known = [number for number in (evaluation.num_tasks, held_out) if number]
    if during is None or not known:
        return None
    return min(known) * evaluation.samples_per_task * (evaluation.before_training + during + 1)


def _num_during(spec: RunSpec) -> int | None:
    """Number of evaluations during training; after the last step is that of the trained model. None means that the
    number of steps is not known."""
    every = spec.evaluation.every
    steps = expected_steps(spec)
    if every is None:
        return 0
    if steps is None:
        return None
    return (steps - 1) // every


def evaluation_line(spec: RunSpec) -> str:
    """One line about the evaluations of a run: tasks, number of evaluations, and their share of all episodes."""
    if not spec.env.is_held_out:
        return "evaluation: none before or after training, since there are no held-out tasks (env.held_out=null)"
    evaluation = spec.evaluation
    steps = expected_steps(spec)
    during = _num_during(spec)
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


def extent_refusals(spec: RunSpec) -> Iterator[Refusal]:
    """Refusals that are the same on every backend."""
    requested = spec.evaluation.num_tasks
    training = spec.training
    known = num_tasks(spec)
    if requested is not None and known.held_out is not None and requested > known.held_out:
        yield Refusal(
            "evaluation.num_tasks",
            f"asks for {requested} held-out tasks, there are {known.held_out}; set null, which takes all",
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


def member_key(spec: RunSpec, name: str) -> str:
    """Key path of a member, as a user of one environment or of a mixture writes it."""
    if len(spec.env.members) == 1:
        return "env"
    return f"env.members.{name}"


def row_lines(spec: RunSpec) -> list[str]:
    """One line for each environment with files of rows: their number, and the columns that are used.

    Raises:
        XpError: rows cannot be read or have no prompt, a ready grader cannot compare one of their answers, or a package
            is missing.
    """
    lines = []
    for name, member in spec.env.members.items():
        _check_packages(member, spec)
        sources = [source for source in names_of(member.rows) if not is_set(source)]
        files = [path for path in map(path_of, sources) if path is not None]
        if files:
            states = tuple(
                (file.stat().st_size, file.stat().st_mtime_ns) for file in files if file.exists()
            )
            lines.append(_line(episode_config(spec).members[name].model_dump_json(), states))
    return lines


@lru_cache(maxsize=64)
def _line(env: str, states: tuple[tuple[int, int], ...]) -> str:
    """The line of an environment, as JSON; cached as long as the files' sizes and times stay, for points of a sweep."""
    del states
    config = decode(EnvConfig, env)
    assert config.rows is not None
    splits, columns = load_rows(config.rows, config.columns, has_pictures=config.images is not None)
    if (config.grader or "").startswith(CHECKED):
        check_answers(config, splits, name_of(config.rows), None)
    return line_of(config.name, splits, columns)


def _check_packages(member: EnvMember, spec: RunSpec) -> None:
    """Checks the packages of the prepare stage, which runs in xp's own Python with launcher=local."""
    if spec.launcher.name is not LauncherName.LOCAL:
        return
    for source in names_of(member.rows):
        check_loader(source)
    if member.grader == "math":
        require("env.grader=math", "math_verify")
