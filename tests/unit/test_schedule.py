"""The order of training tasks."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from xp.tasks.schedule import schedule


@dataclass(frozen=True)
class Row:
    env: str
    index: int
    weight: float = 1.0


def rows(env: str, count: int, weight: float = 1.0) -> list[Row]:
    return [Row(env, index, weight) for index in range(count)]


@given(
    count=st.integers(1, 30),
    prompts=st.integers(1, 90),
    seed=st.integers(0, 9),
)
def test_every_task_comes_once_an_epoch(count: int, prompts: int, seed: int) -> None:
    order = schedule(rows("a", count), prompts, seed=seed, shuffle=True)
    assert len(order) == prompts
    for start in range(0, prompts - count + 1, count):
        assert len(set(order[start : start + count])) == count


def test_members_come_by_their_weights_at_every_point_of_the_order() -> None:
    order = schedule(
        [*rows("a", 50, 3.0), *rows("b", 50, 1.0)],
        200,
        seed=1,
        shuffle=True,
    )
    for length in range(1, 201):
        assert abs(Counter(row.env for row in order[:length])["a"] - 0.75 * length) < 1.0


def test_each_epoch_of_each_member_has_an_order_of_its_own() -> None:
    order = schedule(
        [*rows("a", 30), *rows("b", 30)],
        120,
        seed=1,
        shuffle=True,
    )
    indices = {env: [row.index for row in order if row.env == env] for env in "ab"}
    assert len({tuple(part) for own in indices.values() for part in (own[:30], own[30:])}) == 4


def test_a_longer_run_begins_like_a_shorter_one() -> None:
    pool = [*rows("a", 7), *rows("b", 5)]
    assert schedule(pool, 60, seed=3, shuffle=True)[:20] == schedule(
        pool,
        20,
        seed=3,
        shuffle=True,
    )


def test_without_shuffle_the_order_is_the_sets_own() -> None:
    order = schedule(rows("a", 3), 7, seed=1, shuffle=False)
    assert [row.index for row in order] == [
        *range(3),
        *range(3),
        0,
    ]
