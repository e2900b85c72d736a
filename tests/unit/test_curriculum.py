"""Training tasks that are selected anew by the pass rates of the training's own episodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from xp.composition import compose
from xp.episode.metrics import Played
from xp.episode.outcome import EpisodeResult, EpisodeStatus
from xp.errors import XpError
from xp.tasks.config import Purpose
from xp.tasks.row import TaskRow
from xp.tasks.schedule import schedule
from xp.worker.curriculum import FILE, Curriculum, Refresh

STEPS, PROMPTS, EVERY = 30, 4, 5


def row(index: int, env: str = "a") -> TaskRow:
    return TaskRow(f"{env}/train/{index}", env, Purpose.TRAIN, "train", index, "", (), "[]", 1.0)


HARD = [row(index) for index in range(10)]
MIDDLE = [row(index) for index in range(10, 20)]
EASY = [row(index) for index in range(20, 30)]
ROWS = [*HARD, *MIDDLE, *EASY]
RATES = {str(one.index): (0.0, 0.5, 1.0)[one.index // 10] for one in ROWS}


def curriculum(
    folder: Path,
    *,
    easy_first: bool = False,
    writes: bool = True,
    rows: Sequence[TaskRow] = ROWS,
    rule: Refresh | None = None,
    shuffle: bool = True,
) -> Curriculum:
    return Curriculum(
        schedule(rows, STEPS * PROMPTS, seed=1, shuffle=False),
        rows,
        {"a": rule or Refresh(EVERY, 0.1, 0.9, easy_first, RATES)},
        prompts_per_step=PROMPTS,
        seed=1,
        shuffle=shuffle,
        threshold=1.0,
        file=folder / FILE,
        writes=writes,
    )


def played(tasks: Sequence[TaskRow], rates: dict[str, float], void: int = 0) -> list[Played]:
    """Ten episodes of each task, of which so many pass as its rate says, and void ones."""
    found = []
    for task in tasks:
        rewards: list[float | None] = [float(number < round(10 * rates[task.task_id])) for number in range(10)] + [
            None
        ] * void
        for reward in rewards:
            status = EpisodeStatus.VOID if reward is None else EpisodeStatus.FINISHED
            found.append(Played(task.env, task.task_id, EpisodeResult(status, reward, (), 1, 0, 0), 1))
    return found


def numbers(tasks: Sequence[TaskRow]) -> Counter[str]:
    return Counter("hard" if one in HARD else "easy" if one in EASY else "middle" for one in tasks)


def test_the_first_window_has_the_profiles_tasks_and_retries_others(tmp_path: Path) -> None:
    tasks = [task for step in range(EVERY) for task in curriculum(tmp_path).tasks(step)]
    found = numbers(tasks)
    assert len(tasks) == EVERY * PROMPTS
    assert found["middle"] == 18
    assert found["hard"] + found["easy"] == 2


def test_a_learned_task_leaves_and_one_that_becomes_possible_comes(tmp_path: Path) -> None:
    own = curriculum(tmp_path)
    rates = {one.task_id: RATES[str(one.index)] for one in ROWS} | {MIDDLE[0].task_id: 1.0, HARD[0].task_id: 0.4}
    for step in range(STEPS):
        own.played(step, played(own.tasks(step), rates, void=3))
    last = [task for step in range(STEPS - EVERY, STEPS) for task in own.tasks(step)]
    assert MIDDLE[0] not in last
    assert HARD[0] in last
    assert own.num_within(STEPS - 1) == {"tasks/within_pass_rate": 10.0}


def test_easy_tasks_come_first_within_a_window(tmp_path: Path) -> None:
    own = curriculum(tmp_path, easy_first=True)
    rates = {one.task_id: 0.1 * (1 + one.index % 9) for one in ROWS}
    for step in range(EVERY):
        own.played(step, played(own.tasks(step), rates))
    second = [task for step in range(EVERY, 2 * EVERY) for task in own.tasks(step) if task in MIDDLE]
    first_round = second[: len(set(second))]
    levels = [rates[one.task_id] for one in first_round]
    assert levels == sorted(levels, reverse=True)
    assert len(set(levels)) > 5


def test_a_resumed_run_and_another_rank_have_the_same_tasks(tmp_path: Path) -> None:
    own = curriculum(tmp_path)
    other_rank = curriculum(tmp_path / "none", writes=False)
    rates = {one.task_id: one.index / 29 for one in ROWS}
    for step in range(17):
        tasks = own.tasks(step)
        assert other_rank.tasks(step) == tasks
        for one in (own, other_rank):
            one.played(step, played(tasks, rates))
    with (tmp_path / FILE).open("a") as file:
        file.write('{"step": 17, "tas')  # Killed while it wrote.
    resumed = curriculum(tmp_path)
    assert resumed.tasks(17) == own.tasks(17)
    for step in range(17, 2 * EVERY + 17):
        tasks = own.tasks(step)
        for one in (own, resumed):
            one.played(step, played(tasks, rates))
        assert curriculum(tmp_path).tasks(step + 1) == own.tasks(step + 1)
    assert not (tmp_path / "none").exists()


def test_other_environments_of_a_mixture_keep_their_tasks(tmp_path: Path) -> None:
    others = [row(index, "b") for index in range(7)]
    own = curriculum(tmp_path, rows=[*ROWS, *others])
    order = schedule([*ROWS, *others], STEPS * PROMPTS, seed=1, shuffle=False)
    tasks = [task for step in range(EVERY) for task in own.tasks(step)]
    assert [task.env for task in tasks] == [task.env for task in order[: EVERY * PROMPTS]]
    assert [task for task in tasks if task.env == "b"] == [task for task in order[: EVERY * PROMPTS] if task.env == "b"]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["env.train.refresh_every=5"], "need profile"),
        (["env.train.refresh_every=5", "env.train.profile=x"], "pass_rate"),
        (
            [
                "env.train.refresh_every=5",
                "env.train.profile=x",
                "env.train.pass_rate=[0.1,0.9]",
                "env.train.num_tasks=3",
            ],
            "num_tasks",
        ),
    ],
)
def test_a_refresh_needs_bounds_and_all_tasks(more: list[str], said: str) -> None:
    with pytest.raises(XpError, match=said):
        compose(["env=multiply", *more])


@pytest.mark.parametrize("easy_first", [False, True])
def test_windows_in_a_fixed_order_reach_every_task(tmp_path: Path, easy_first: bool) -> None:
    rule = Refresh(1, 0.0, 1.0, easy_first, RATES)
    own = curriculum(tmp_path, rule=rule, shuffle=False)
    rates = {one.task_id: 0.5 for one in ROWS}
    given: Counter[str] = Counter()
    for step in range(15):
        given.update(row.task_id for row in own.tasks(step))
        own.played(step, played(own.tasks(step), rates))
    assert len(given) == len(ROWS)
    assert max(given.values()) <= 3


def test_held_out_tasks_are_never_among_those_to_choose_from(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="not trained on"):
        curriculum(tmp_path, rows=[*ROWS, replace(row(30), purpose=Purpose.HELD_OUT)])
