"""Curricula (`env.train.curriculum`): the tasks of a rollout step, drawn by the rewards of earlier steps."""

from __future__ import annotations

import math
import random
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from xp.episode.metrics import EpisodeFacts
from xp.lib.codec import JsonFile
from xp.lib.load import load_estimate
from xp.lib.nested import grouped
from xp.lib.reading import config_of
from xp.spec import RunSpec, SelectionSpec
from xp.spec.tasks import BY_PASS_RATE
from xp.tasks.config import Purpose
from xp.tasks.row import TaskRow
from xp.tasks.schedule import schedule

NEWEST: Final = 0.5
"""Weight of a task's newest group in its running pass rate: the policy changes, so old groups fade."""
FILE: Final = "curriculum.json"
"""Name of the state's file in or beside a checkpoint."""


@dataclass(frozen=True)
class PlayedGroup:
    """The episodes of one task in one rollout step."""

    step: int
    """Number of the rollout step, from 0."""
    rewards: tuple[float | None, ...]
    """Reward of each episode, without a penalty for length. None means void."""


@dataclass(frozen=True)
class TaskHistory:
    """A training task with its past; a function of the user's gets a list of all tasks of its environment."""

    env: str
    """Name of its member of the mixture."""
    task_id: str
    split: str
    index: int
    """Position in the split."""
    groups: tuple[PlayedGroup, ...]
    """From the oldest to the newest; empty for a task that was not tried."""


WeightsFn = Callable[[Sequence[TaskHistory]], list[float]]
"""Function from all tasks of an environment to one weight each; a task of weight 0 is not drawn."""


@dataclass(frozen=True)
class StepDraw:
    """The tasks of a rollout step."""

    step: int
    task_ids: tuple[str, ...]
    metrics: dict[str, float]
    """Metrics of the table by which they were drawn."""


@dataclass(frozen=True)
class CurriculumState(JsonFile):
    """The table of past rewards and the steps that are drawn and not settled, as a checkpoint holds them."""

    groups: dict[str, tuple[PlayedGroup, ...]]
    """Task id -> its groups."""
    draws: tuple[StepDraw, ...]


@dataclass(frozen=True)
class _DrawnMember:
    """A member of the mixture that has a curriculum."""

    selection: SelectionSpec
    rows: Sequence[TaskRow]
    """Its tasks in the order in which they are first tried."""
    weigh: WeightsFn | None
    """The user's function. None means by pass rate."""


class Curriculum:
    """Draws the tasks of each step. A draw depends on the seed, the step's number and the settled rewards alone.

    Members of a mixture alternate by weight as without a curriculum; a member that has none keeps its fixed order.
    A step sees the rewards of the steps that have ended whenever it can begin: with `training.max_staleness`, so many
    of the latest are left out, whatever the timing of the engines is.

    Args:
        spec: the run's spec.
        rows: training tasks.
        num_steps: rollout steps of the training.
        decide: calls the function that draws; on several ranks it is called by one, and all get its result.

    Raises:
        XpError: a function of the user's cannot be loaded.
    """

    def __init__(
        self,
        spec: RunSpec,
        rows: Sequence[TaskRow],
        num_steps: int,
        decide: Callable[[Callable[[], StepDraw]], StepDraw] | None = None,
    ) -> None:
        self._spec = spec
        self._num_steps = num_steps
        self._decide = decide or _drawn_here
        self._rows = {row.task_id: row for row in rows}
        training = spec.training
        num_prompts = num_steps * training.prompts_per_step
        self._fixed = schedule(rows, num_prompts, seed=spec.seed, shuffle=training.shuffle)
        self._members = {
            name: _member(spec, name, members_rows)
            for name, members_rows in grouped((row.env, row) for row in rows).items()
            if spec.env.members[name].train.curriculum is not None
        }
        self._groups: dict[str, list[PlayedGroup]] = {}
        self._draws: dict[int, StepDraw] = {}

    def begin(self, step: int) -> None:
        """Draws the tasks of a step, and of those that may be played ahead of it; the steps before are settled."""
        end = min(step + self._spec.training.max_staleness + 1, self._num_steps)
        for number in range(step, end):
            if number not in self._draws:
                self._draws[number] = self._decide(partial(self._draw, number))

    def tasks(self, step: int) -> list[TaskRow]:
        """The tasks of a step that has been drawn."""
        return [self._rows[task_id] for task_id in self._draws[step].task_ids]

    def settle(self, step: int, played: Iterable[EpisodeFacts]) -> dict[str, float]:
        """Adds the rewards of a step to the table; returns the metrics of its draw."""
        rewards = grouped((episode.task_id, episode.outcome.task_reward) for episode in played)
        for task_id, values in rewards.items():
            self._groups.setdefault(task_id, []).append(PlayedGroup(step, tuple(values)))
        # A checkpoint may be written when the step after it has been played already.
        oldest = step - self._spec.training.max_staleness
        self._draws = {number: draw for number, draw in self._draws.items() if number >= oldest}
        return self._draws[step].metrics

    def state(self, next_step: int) -> CurriculumState:
        """The state at the beginning of a step."""
        groups = {
            task_id: tuple(group for group in groups if group.step < next_step)
            for task_id, groups in self._groups.items()
        }
        drawn = tuple(draw for step, draw in sorted(self._draws.items()) if step >= next_step)
        return CurriculumState(groups, drawn)

    def restore(self, file: Path) -> None:
        """Continues from the state of a checkpoint.

        Raises:
            XpError: (RUN_DIR) the checkpoint has no such file, or it cannot be read: without the earlier rewards, the
                training would try every task again.
        """
        state = config_of(file, CurriculumState.from_json)
        self._groups = {task_id: list(groups) for task_id, groups in state.groups.items()}
        self._draws = {draw.step: draw for draw in state.draws}

    def _draw(self, step: int) -> StepDraw:
        size = self._spec.training.prompts_per_step
        order = self._fixed[step * size : (step + 1) * size]
        num_drawn = Counter(row.env for row in order)
        numbers: Counter[str] = Counter()
        drawn = {}
        for name, member in self._members.items():
            generator = random.Random(f"{self._spec.seed}/{name}/{step}")
            histories = [self._history(row, step) for row in member.rows]
            if member.weigh is None:
                threshold = self._spec.evaluation.pass_threshold
                pools = _pools(histories, member.selection, threshold)
                share = member.selection.curriculum_exploration
                positions = _from_pools(pools, num_drawn[name], share, generator)
            else:
                weights = member.weigh(histories)
                pools = {"in_bounds": [at for at, weight in enumerate(weights) if weight > 0]}
                pools["untried"] = [at for at, task in enumerate(histories) if not task.groups]
                positions = _by_weight(weights, num_drawn[name], generator)
            numbers.update({pool: len(tasks) for pool, tasks in pools.items()})
            drawn[name] = iter([member.rows[position].task_id for position in positions])
        task_ids = [next(drawn[row.env]) if row.env in drawn else row.task_id for row in order]
        num_tasks = sum(len(member.rows) for member in self._members.values())
        return StepDraw(step, tuple(task_ids), _metrics(numbers, num_tasks))

    def _history(self, row: TaskRow, step: int) -> TaskHistory:
        first_unseen = step - self._spec.training.max_staleness
        groups = self._groups.get(row.task_id, ())
        seen = tuple(group for group in groups if group.step < first_unseen)
        return TaskHistory(row.env, row.task_id, row.split, row.index, seen)


def curriculum_of(
    spec: RunSpec,
    rows: Sequence[TaskRow],
    num_steps: int,
    decide: Callable[[Callable[[], StepDraw]], StepDraw] | None = None,
) -> Curriculum | None:
    """The curriculum of a run; None if no member of the mixture has one. Arguments as of Curriculum."""
    if not spec.env.has_curriculum:
        return None
    return Curriculum(spec, rows, num_steps, decide)


def row_of_view(columns: Mapping[str, Any], spec: RunSpec) -> TaskRow:
    """A row with what a curriculum reads, made of the columns of a trainer's own view of the tasks."""
    env = columns["env"]
    task = (columns["task_id"], env, Purpose.TRAIN, columns["split"], columns["index"])
    return TaskRow(*task, "", (), "[]", spec.env.members[env].weight)


def load_weights_fn(name: str) -> WeightsFn:
    """Loads a curriculum `package.module:function`, with checks of its results; raises XpError if it does not exist."""

    def fault_of(weights: Sequence[float]) -> str:
        if min(weights) < 0 or max(weights) <= 0:
            return "numbers of at least 0 for each, and one above 0"
        return ""

    return load_estimate("curriculum", name, "tasks", fault_of)


def pass_rate(groups: Iterable[PlayedGroup], threshold: float) -> float | None:
    """Running share of passed episodes, an exponential mean over groups; None before a valid episode."""
    rate = None
    for share in _pass_shares(groups, threshold):
        if rate is None:
            rate = share
        else:
            rate = (1 - NEWEST) * rate + NEWEST * share
    return rate


def num_solved(groups: Iterable[PlayedGroup], threshold: float) -> int:
    """Number of the latest groups in a row whose valid episodes have all passed."""
    number = 0
    for share in _pass_shares(groups, threshold):
        number = number + 1 if share == 1 else 0
    return number


def _pass_shares(groups: Iterable[PlayedGroup], threshold: float) -> list[float]:
    """Share of passed episodes of each group that has valid ones."""
    shares = []
    for group in groups:
        passed = [reward >= threshold for reward in group.rewards if reward is not None]
        if passed:
            shares.append(sum(passed) / len(passed))
    return shares


def _member(spec: RunSpec, name: str, rows: Sequence[TaskRow]) -> _DrawnMember:
    selection = spec.env.members[name].train
    assert selection.curriculum is not None
    weigh = None
    if selection.curriculum != BY_PASS_RATE:
        weigh = load_weights_fn(selection.curriculum)
    # The first epoch of the fixed order.
    order = schedule(rows, len(rows), seed=spec.seed, shuffle=spec.training.shuffle)
    return _DrawnMember(selection, order, weigh)


def _pools(
    histories: Sequence[TaskHistory], selection: SelectionSpec, threshold: float
) -> dict[str, list[int]]:
    """Positions of the tasks by what is known of them; each task is in one pool."""
    lowest, highest = selection.curriculum_bounds
    names = ("untried", "below", "in_bounds", "above", "forgotten")
    pools: dict[str, list[int]] = {name: [] for name in names}
    forget = selection.curriculum_forget
    for position, task in enumerate(histories):
        rate = pass_rate(task.groups, threshold)
        if rate is None:
            name = "untried"
        elif forget is not None and num_solved(task.groups, threshold) >= forget:
            name = "forgotten"
        elif rate < lowest:
            name = "below"
        elif rate > highest:
            name = "above"
        else:
            name = "in_bounds"
        pools[name].append(position)
    pools["outside"] = sorted(pools["below"] + pools["above"])
    for name in ("outside", "forgotten"):
        # The one that was not tried for the longest time is next.
        pools[name].sort(key=lambda position: histories[position].groups[-1].step)
    return pools


def _from_pools(
    pools: dict[str, list[int]], number: int, exploration: float, generator: random.Random
) -> list[int]:
    """Draws positions, each once until all are drawn.

    A place is for exploration with that probability: for untried tasks in their order, then for those outside the
    bounds. At the others, each task that is within the bounds or untried is as likely: where few tasks have been
    tried, a preference for them would train on these few alone. Forgotten tasks come last.
    """
    drawn: list[int] = []
    within, untried, outside, forgotten = [deque[int]() for _ in range(4)]
    while len(drawn) < number:
        if not (within or untried or outside or forgotten):
            within.extend(generator.sample(pools["in_bounds"], len(pools["in_bounds"])))
            untried.extend(pools["untried"])
            outside.extend(pools["outside"])
            forgotten.extend(pools["forgotten"])
        is_exploration = generator.random() < exploration
        is_untried = generator.random() * (len(within) + len(untried)) < len(untried)
        if is_exploration:
            queues = (untried, outside, within, forgotten)
        elif is_untried:
            queues = (untried, within, outside, forgotten)
        else:
            queues = (within, untried, outside, forgotten)
        queue = next(filter(None, queues))
        drawn.append(queue.popleft())
    return drawn


def _by_weight(weights: Sequence[float], number: int, generator: random.Random) -> list[int]:
    """Draws positions by weight, each once until all of a weight above 0 are drawn.

    The smallest of exponential variables with the weights as rates (Efraimidis and Spirakis 2006).
    """
    drawn: list[int] = []
    while len(drawn) < number:
        keys = {
            position: -math.log(1 - generator.random()) / weight
            for position, weight in enumerate(weights)
            if weight > 0
        }
        drawn += sorted(keys, key=lambda position: keys[position])[: number - len(drawn)]
    return drawn


def _metrics(numbers: Counter[str], num_tasks: int) -> dict[str, float]:
    shares = {pool: number / num_tasks for pool, number in numbers.items() if pool != "outside"}
    if "forgotten" in numbers:
        shares["forgotten"] = float(numbers["forgotten"])  # a number of tasks
    return {f"curriculum/{pool}": share for pool, share in shares.items()}


def _drawn_here(draw: Callable[[], StepDraw]) -> StepDraw:
    return draw()
