"""Choosing a few tasks of a split that says it has more than any list can hold."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

from tests.unit.test_tasks_selection import TRAIN, Sized, choose, indices
from xp.envs import wire
from xp.envs.base import MOST_TASKS, ProtocolError
from xp.errors import ExitCode, XpError
from xp.tasks.config import HeldOut, Purpose, Selection
from xp.tasks.held_out import Identity
from xp.tasks.selection import LARGE, Selected

pytestmark = pytest.mark.scorecard(51)

HUGE = 10**9
MOST_BYTES = 4_000_000
EIGHT = Selection(("train",), 8)
SHUFFLED = Selection(("train",), 8, shuffle=True, seed=3)


def of_huge(train: Selection, held_out: HeldOut | None, size: int = HUGE) -> Selected:
    """The selection, which must hold next to nothing while it is made."""
    tracemalloc.start()
    try:
        chosen = choose(train, held_out, Sized({"train": size, "test": size}))
        assert tracemalloc.get_traced_memory()[1] < MOST_BYTES
    finally:
        tracemalloc.stop()
    return chosen


@pytest.mark.parametrize("train", [EIGHT, SHUFFLED], ids=["front", "shuffled"])
@pytest.mark.parametrize(
    "held_out",
    [
        None,
        HeldOut("test", num_tasks=5),
        HeldOut("test", num_tasks=5, shuffle=True),
        HeldOut("train", fraction=0.2, num_tasks=5),
        HeldOut("train", indices=(2, 9)),
    ],
    ids=["nothing", "split", "shuffled split", "share", "indices"],
)
def test_eight_of_a_billion_tasks_are_chosen_without_listing_them(train: Selection, held_out: HeldOut | None) -> None:
    chosen = of_huge(train, held_out)
    trained = chosen.tasks[Purpose.TRAIN]
    assert len(set(trained)) == 8
    assert not set(trained) & set(chosen.tasks.get(Purpose.HELD_OUT, ()))
    assert len(chosen.tasks.get(Purpose.HELD_OUT, ())) == {None: 0}.get(
        held_out, 5 if held_out and held_out.num_tasks else 2
    )


def test_a_share_of_a_huge_split_is_by_hash() -> None:
    wanted = HeldOut("train", fraction=0.2, num_tasks=40)
    small, large = (of_huge(EIGHT, wanted, size) for size in (LARGE + 1, HUGE))
    assert indices(small, Purpose.HELD_OUT) == indices(large, Purpose.HELD_OUT) != list(range(40))
    assert large.record.identity is Identity.INDEX
    share = indices(choose(TRAIN, HeldOut("train", fraction=0.2), Sized({"train": 1000})), Purpose.HELD_OUT)
    assert len(set(indices(large, Purpose.HELD_OUT)) - set(share)) <= 2  # A smaller one's has an exact size.


def test_a_larger_draw_from_a_huge_split_begins_with_the_smaller_one() -> None:
    few, many = (of_huge(Selection(("train",), n, shuffle=True, seed=3), None).tasks[Purpose.TRAIN] for n in (5, 500))
    assert list(many[:5]) == list(few)
    assert len(set(many)) == 500


@pytest.mark.parametrize(
    ("train", "held_out", "key"),
    [
        (TRAIN, None, "train.num_tasks"),
        (EIGHT, HeldOut("test"), "held_out.num_tasks"),
        (EIGHT, HeldOut("train", fraction=0.2), "held_out.num_tasks"),
        (Selection(("train",), 20_000_000, shuffle=True), None, "train.num_tasks"),
    ],
)
def test_more_tasks_than_can_be_prepared_are_refused_with_the_way_out(
    train: Selection, held_out: HeldOut | None, key: str
) -> None:
    with pytest.raises(XpError, match=f"at most 10,000,000 can be prepared\nset {key}") as error:
        of_huge(train, held_out)
    assert error.value.code is ExitCode.CONFIG


@pytest.mark.parametrize("size", [10**30, MOST_TASKS + 1, -1, 1.5, True, None, "8"], ids=str)
def test_an_absurd_count_is_a_fault_of_the_environment(size: Any) -> None:
    with pytest.raises(XpError, match="expected a whole number from 0") as error:
        choose(EIGHT, None, Sized({"train": size}))
    assert error.value.code is ExitCode.ENVIRONMENT
    with pytest.raises(ProtocolError, match="a number of tasks"):
        wire.count(size, "/num_tasks")
