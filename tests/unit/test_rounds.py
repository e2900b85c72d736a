"""Which held-out tasks an evaluation plays."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.sections import run_spec
from xp.backends.trl.worker.held_out import share_of
from xp.backends.trl.worker.process import Ranks
from xp.spec import Evaluation
from xp.tasks.config import Purpose
from xp.tasks.row import TaskRow
from xp.tasks.schedule import evaluated_episodes, evaluated_tasks


def rule(num_tasks: int | None, samples_per_task: int) -> Evaluation:
    return run_spec(
        evaluation__num_tasks=num_tasks, evaluation__samples_per_task=samples_per_task
    ).evaluation


@dataclass(frozen=True)
class Named:
    task_id: str


def tasks(count: int) -> list[Named]:
    return [Named(f"a/test/{index}") for index in range(count)]


def test_all_held_out_tasks_are_played_where_no_number_is_given() -> None:
    assert evaluated_episodes(rule(None, 1), tasks(5)) == tasks(5)


def test_every_task_has_its_samples_and_not_one_more() -> None:
    played = evaluated_episodes(rule(16, 3), tasks(512))
    assert [*Counter(played).values()] == [3] * 16


@given(few=st.integers(1, 40), more=st.integers(0, 40))
def test_a_smaller_evaluation_plays_the_beginning_of_a_larger_one(few: int, more: int) -> None:
    small = evaluated_tasks(rule(few, 1), tasks(60))
    large = evaluated_tasks(rule(few + more, 1), tasks(60))
    assert len(small) == min(few, 60)
    assert set(small) <= set(large)
    assert large == [task for task in tasks(60) if task in large]


def test_the_choice_does_not_depend_on_order_or_unchosen_tasks() -> None:
    chosen = evaluated_tasks(rule(10, 1), tasks(60))
    rest = [task for task in tasks(60) if task not in chosen]
    assert set(evaluated_tasks(rule(10, 1), [*reversed(rest[::2]), *chosen])) == set(chosen)


@pytest.mark.parametrize("samples", [1, 3])
@pytest.mark.parametrize(
    ("num_tasks", "processes"),
    [
        (6, 2),
        (1, 4),
        (7, 4),
    ],
)
def test_ranks_play_as_many_each_and_count_every_episode_once_with_whole_tasks(
    num_tasks: int, processes: int, samples: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        TaskRow(f"a/test/{n}", "a", Purpose.HELD_OUT, "test", n, "", (), "[]", 1.0)
        for n in range(num_tasks)
    ]
    monkeypatch.setenv("WORLD_SIZE", str(processes))
    counted = Counter[tuple[str, int]]()
    lengths = set()
    ranks_of_tasks = defaultdict(set)
    for rank in range(processes):
        monkeypatch.setenv("RANK", str(rank))
        numbered, count = share_of(rows, samples, Ranks())
        lengths.add(len(numbered))
        for row, at in numbered[:count]:
            counted[row.task_id, at] += 1
            ranks_of_tasks[row.task_id].add(rank)
    assert len(lengths) == 1
    assert counted == {(row.task_id, at): 1 for row in rows for at in range(samples)}
    assert {len(ranks) for ranks in ranks_of_tasks.values()} == {1}
