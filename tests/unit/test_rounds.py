"""Which held-out tasks an evaluation plays."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xp.backends.trl.worker.held_out import share_of
from xp.backends.trl.worker.process import Ranks
from xp.tasks.config import Purpose
from xp.tasks.evaluated import Rounds
from xp.tasks.row import TaskRow


@dataclass(frozen=True)
class Named:
    task_id: str


def tasks(count: int) -> list[Named]:
    return [Named(f"a/test/{index}") for index in range(count)]


def test_all_held_out_tasks_are_played_where_no_number_is_given() -> None:
    assert Rounds(None, 1).episodes(tasks(5)) == tasks(5)


def test_every_task_has_its_samples_and_not_one_more() -> None:
    played = Rounds(16, 3).episodes(tasks(512))
    assert len(played) == 48
    assert set(Counter(played).values()) == {3}


@given(few=st.integers(1, 40), more=st.integers(0, 40))
def test_a_smaller_evaluation_plays_the_beginning_of_a_larger_one(few: int, more: int) -> None:
    small, large = Rounds(few, 1).tasks(tasks(60)), Rounds(few + more, 1).tasks(tasks(60))
    assert len(small) == min(few, 60)
    assert set(small) <= set(large)
    assert large == [task for task in tasks(60) if task in large]


def test_the_choice_does_not_depend_on_order_or_unchosen_tasks() -> None:
    chosen = Rounds(10, 1).tasks(tasks(60))
    rest = [task for task in tasks(60) if task not in chosen]
    assert set(Rounds(10, 1).tasks([*reversed(rest[::2]), *chosen])) == set(chosen)


@pytest.mark.parametrize(("episodes", "processes"), [(5, 2), (6, 2), (1, 4), (7, 4)])
def test_ranks_play_as_many_each_and_count_every_episode_once(
    episodes: int, processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [TaskRow(f"a/test/{n}", "a", Purpose.HELD_OUT, "test", n, "", (), "[]", 1.0) for n in range(episodes)]
    monkeypatch.setenv("WORLD_SIZE", str(processes))
    shares = []
    for number in range(processes):
        monkeypatch.setenv("RANK", str(number))
        shares.append(share_of(rows, Ranks()))
    assert len({len(numbered) for numbered, _ in shares}) == 1
    counted = [row.task_id for numbered, count in shares for row, _ in numbered[:count]]
    assert sorted(counted) == sorted(row.task_id for row in rows)
