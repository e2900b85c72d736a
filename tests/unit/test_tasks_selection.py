"""Which tasks are for training and which are held out."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fake_session import RULES
from xp.errors import XpError
from xp.tasks.config import MemberConfig, PrepareConfig, Purpose, Selection
from xp.tasks.selection import SHARD_TASKS, cut_into_blocks, select_tasks

SIZES = {"train": 100, "test": 20, "empty": 0}


def select(train: Selection, held_out: Selection | None = None, size: int = 100) -> tuple[list[int], list[int]]:
    member = MemberConfig(replace(RULES, name="m"), train, held_out, 1.0, None)
    chosen = select_tasks(member, tuple(SIZES), lambda split: {**SIZES, "train": size}[split])
    return chosen[Purpose.TRAIN], chosen.get(Purpose.HELD_OUT, [])


def test_without_a_number_all_of_the_split_is_taken_in_order() -> None:
    assert select(Selection("train"), Selection("test")) == (list(range(100)), list(range(20)))


def test_a_number_takes_from_the_front_and_a_shuffle_draws_by_its_seed() -> None:
    assert select(Selection("train", 3))[0] == [0, 1, 2]
    first, again, other = (select(Selection("train", 10, shuffle=True, seed=seed))[0] for seed in (1, 1, 2))
    assert first == again
    assert sorted(first) != sorted(other)


def test_a_larger_draw_of_one_seed_holds_the_smaller_one() -> None:
    few, many = (select(Selection("train", n, shuffle=True, seed=7))[0] for n in (5, 50))
    assert many[:5] == few


def test_indices_are_taken_as_they_stand() -> None:
    assert select(Selection("train", indices=(9, 3, 9)))[0] == [9, 3]


@given(st.integers(30, 400), st.floats(0.1, 0.9), st.integers(0, 5), st.booleans())
def test_one_split_falls_into_two_parts_without_overlap(size: int, fraction: float, seed: int, shuffle: bool) -> None:
    try:
        train, held_out = select(
            Selection("train", shuffle=shuffle), Selection("train", fraction=fraction, seed=seed), size
        )
    except XpError as error:
        assert "no task at all" in str(error)  # noqa: PT017 (a share of a small split may be all or nothing of it)
        return
    assert sorted(train + held_out) == list(range(size))


@given(st.integers(20, 200), st.integers(1, 10))
def test_a_number_held_out_of_one_split_is_chosen_by_hash(size: int, num_held_out: int) -> None:
    train, held_out = select(Selection("train"), Selection("train", num_held_out), size)
    assert len(held_out) == num_held_out
    assert not set(train) & set(held_out)


def test_held_out_tasks_stay_held_out_when_the_split_grows() -> None:
    (_, small), (_, large) = (select(Selection("train"), Selection("train", fraction=0.2), size) for size in (50, 100))
    assert set(small) <= set(large)
    assert {index for index in large if index < 50} == set(small)


@pytest.mark.parametrize(
    ("train", "held_out", "message"),
    [
        (Selection("tain"), None, "no split 'tain' for train.split; the environment has: train, test, empty"),
        (Selection("train"), Selection("val"), "no split 'val' for held_out.split"),
        (Selection("train", 101), None, "101 tasks, but split 'train' has 100.*\n.*at most 100"),
        (Selection("train", indices=(5, 100)), None, r"indices \[100\], but split 'train' has tasks 0 to 99"),
        (Selection("train", indices=(-1,)), None, r"indices \[-1\]"),
        (Selection("train", indices=()), None, "no task at all"),
        (Selection("empty"), None, "'empty' has no tasks"),
        (Selection("train"), Selection("train"), "both take the split 'train'\nset held_out.fraction"),
        (Selection("train", indices=(1, 2)), Selection("train", indices=(2,)), r"\[2\].*held out as well"),
        (Selection("train"), Selection("train", indices=tuple(range(100))), "no task at all"),
    ],
)
def test_an_impossible_selection_is_refused_with_the_way_out(
    train: Selection, held_out: Selection | None, message: str
) -> None:
    with pytest.raises(XpError, match=message):
        select(train, held_out)


def test_blocks_hold_every_task_once_and_held_out_ones_come_first() -> None:
    member = MemberConfig(replace(RULES, name="m"), Selection("train"), Selection("test"), 1.0, None)
    config = PrepareConfig({"m": member}, 0.0, 1)
    selected = {"m": {Purpose.TRAIN: list(range(SHARD_TASKS + 5)), Purpose.HELD_OUT: [4, 2]}}
    blocks = cut_into_blocks(config, selected)
    assert [(b.number, b.purpose, b.split, len(b.indices)) for b in blocks] == [
        (0, "held_out", "test", 2),
        (1, "train", "train", SHARD_TASKS),
        (2, "train", "train", 5),
    ]
    assert blocks[0].task_id(4) == "m/test/4"
