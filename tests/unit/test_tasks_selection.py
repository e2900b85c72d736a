"""Which tasks are for training and which are held out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.fake_provider import FakeWorld
from tests.support.fake_session import RULES
from tests.support.sections import held_out_rule, member_of, prepare_of, replace, selection
from xp.envs.base import Task
from xp.errors import XpError
from xp.spec import HeldOutSpec, SelectionSpec
from xp.tasks.config import Purpose
from xp.tasks.held_out import HeldOutRecord, Identity, Rule, evaluation_only
from xp.tasks.questions import ProviderSplits
from xp.tasks.selection import SHARD_TASKS, Position, SelectedTasks, cut_into_blocks, select_tasks

SIZES = {"train": 100, "extra": 40, "test": 20, "empty": 0}
TRAIN = selection()


@dataclass
class Sized:
    """An environment of which only the sizes matter, and the contents of the splits that it lists."""

    sizes: Mapping[str, int]
    lists: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def names(self) -> Sequence[str]:
        return tuple(self.sizes)

    def num_tasks(self, split: str) -> int:
        return self.sizes[split]

    def contents(self, split: str) -> Sequence[str] | None:
        return self.lists.get(split)


def choose(
    train: SelectionSpec, held_out: HeldOutSpec | None, splits: Sized | None = None
) -> SelectedTasks:
    member = member_of(replace(RULES, name="m"), train, held_out)
    return select_tasks(member, splits or Sized(SIZES))


def select(
    train: SelectionSpec, held_out: HeldOutSpec | None = None, size: int = 100
) -> tuple[list[int], list[int]]:
    chosen = choose(train, held_out, Sized({**SIZES, "train": size}))
    return indices(chosen, Purpose.TRAIN), indices(chosen, Purpose.HELD_OUT)


def indices(chosen: SelectedTasks, purpose: Purpose) -> list[int]:
    return [index for _, index in chosen.tasks.get(purpose, ())]


def test_a_number_takes_the_first_and_shuffle_draws_by_seed() -> None:
    assert select(selection(("train",), 3))[0] == [0, 1, 2]
    first, again, other = (
        select(selection(("train",), 10, shuffle=True, seed=seed))[0] for seed in (1, 1, 2)
    )
    assert first == again
    assert sorted(first) != sorted(other)


@pytest.mark.parametrize(
    ("fraction", "size", "count"), [(0.1, 3, 1), (0.4, 3, 2), (0.9, 3, 2), (0.9, 2, 1)]
)
def test_a_share_is_rounded_up_and_leaves_a_task_to_each_side(
    fraction: float, size: int, count: int
) -> None:
    train, held_out = select(TRAIN, held_out_rule("train", fraction=fraction), size)
    assert len(train) == size - count
    assert len(held_out) == count


def test_a_larger_draw_of_one_seed_holds_the_smaller_one() -> None:
    few, many = (select(selection(("train",), n, shuffle=True, seed=7))[0] for n in (5, 50))
    assert many[:5] == few


@pytest.mark.parametrize(
    ("splits", "chosen"),
    [
        (("train", "dev", "eval", "validation", "test"), "test"),
        (("dev", "eval", "validation", "train"), "validation"),
        (("dev", "eval", "train"), "eval"),
        (("dev", "train"), "dev"),
    ],
)
def test_what_is_held_out_by_default_is_the_environments_own_second_split(
    splits: Sequence[str], chosen: str
) -> None:
    record = choose(TRAIN, held_out_rule(fraction=0.2), Sized(dict.fromkeys(splits, 10))).record
    assert record.rule == Rule.SPLIT
    assert record.splits == (chosen,)
    assert record.num_held_out == 10
    assert record.num_train == 10


@pytest.mark.parametrize(
    "sizes", [{"train": 100}, {"train": 100, "test": 0}, {"train": 100, "hard": 10}], ids=str
)
def test_without_a_second_split_a_share_is_held_out(sizes: dict[str, int]) -> None:
    chosen = choose(TRAIN, held_out_rule(fraction=0.2), Sized(sizes))
    train = indices(chosen, Purpose.TRAIN)
    held_out = indices(chosen, Purpose.HELD_OUT)
    assert sorted(train + held_out) == list(range(100))
    assert 10 <= len(held_out) <= 30
    assert chosen.record.rule == Rule.SHARE
    assert chosen.record.identity == Identity.INDEX


@given(st.integers(2, 400), st.floats(0.01, 0.99), st.integers(0, 5), st.booleans())
def test_one_split_falls_into_two_parts_and_none_is_empty(
    size: int, fraction: float, seed: int, shuffle: bool
) -> None:
    wanted = held_out_rule("train", fraction=fraction, seed=seed)
    train, held_out = select(selection(("train",), shuffle=shuffle), wanted, size)
    assert sorted(train + held_out) == list(range(size))
    assert train
    assert held_out


@given(st.integers(30, 200), st.integers(0, 200))
def test_a_share_is_exact_and_stable_when_the_split_grows(size: int, more: int) -> None:
    small, large = (
        set(select(TRAIN, held_out_rule("train", fraction=0.2), n)[1]) for n in (size, size + more)
    )
    assert len(small) == -(-size // 5)
    assert len(large) == -(-(size + more) // 5)
    remaining = {index for index in large if index < size}
    assert remaining <= small or small <= remaining  # All that change, change to the same side.


def test_several_training_splits_are_one_set() -> None:
    splits = Sized({"train": 100, "extra": 40})
    chosen = choose(
        selection(("train", "extra"), shuffle=True, num_tasks=60),
        held_out_rule(fraction=0.2),
        splits,
    )
    train = chosen.tasks[Purpose.TRAIN]
    assert [split for split, _ in train] == sorted((split for split, _ in train), reverse=True)
    assert (
        {split for split, _ in train}
        == {"train", "extra"}
        == {split for split, _ in chosen.tasks[Purpose.HELD_OUT]}
    )
    assert len(train) == 60
    assert not set(train) & set(chosen.tasks[Purpose.HELD_OUT])


def test_the_name_of_one_training_split_means_a_share_of_that_one() -> None:
    splits = Sized({"train": 100, "extra": 40, "test": 9})
    chosen = choose(selection(("train", "extra")), held_out_rule("extra", fraction=0.5), splits)
    assert {split for split, _ in chosen.tasks[Purpose.HELD_OUT]} == {"extra"}
    assert chosen.record.num_held_out + chosen.record.num_train == 140


def test_the_hash_is_of_the_content_only_where_all_splits_list_theirs() -> None:
    train = selection(("train", "extra"))
    contents = [f"task {number}" for number in range(20)]
    sizes = {"train": 20, "extra": 20}
    both = choose(
        train,
        held_out_rule(fraction=0.2),
        Sized(sizes, {"train": contents, "extra": contents[::-1]}),
    )
    one = choose(train, held_out_rule(fraction=0.2), Sized(sizes, {"train": contents}))
    assert both.record.identity == Identity.CONTENT
    assert one.record.identity == Identity.INDEX
    # The same content is on the same side in both splits.
    held_out = both.tasks[Purpose.HELD_OUT]
    assert {index for split, index in held_out if split == "train"} == {
        19 - index for split, index in held_out if split == "extra"
    }


def test_with_overlap_allowed_the_training_tasks_are_evaluated_on_and_stay() -> None:
    chosen = choose(TRAIN, held_out_rule("train", fraction=0.2, may_overlap=True))
    assert indices(chosen, Purpose.TRAIN) == indices(chosen, Purpose.HELD_OUT) == list(range(100))


def test_an_environment_with_only_a_test_split_trains_nothing() -> None:
    chosen = choose(TRAIN, held_out_rule(fraction=0.2), Sized({"test": 12}))
    assert indices(chosen, Purpose.TRAIN) == []
    assert len(indices(chosen, Purpose.HELD_OUT)) == 12
    assert "there is no split to train on" in chosen.record.line()


def test_nothing_is_held_out_where_none_is_wanted() -> None:
    chosen = choose(TRAIN, None)
    assert list(chosen.tasks) == [Purpose.TRAIN]
    assert chosen.record.line() == "nothing; 100 tasks to train on"


@pytest.mark.parametrize(
    ("record", "line"),
    [
        (
            HeldOutRecord(Rule.SPLIT, ("test",), ("train",), {"train": 179, "test": 6}, 6, 179),
            "6 of 6 tasks of split test; 179 of split train to train on",
        ),
        (
            HeldOutRecord(
                Rule.SHARE, ("train",), ("train",), {"train": 100}, 19, 50, Identity.CONTENT
            ),
            "19 of 100 tasks of split train, chosen by the hash of their content (warning: means of fewer than 30 tasks"
            " are uncertain; see the interval); 50 of split train to train on",
        ),
        (
            HeldOutRecord(
                Rule.SPLIT, ("train",), ("train",), {"train": 100}, 100, 100, num_trained_on=100
            ),
            "100 of 100 tasks of split train; 100 of split train to train on,"
            " all evaluation tasks are trained on as well",
        ),
    ],
)
def test_the_rule_and_its_figures_are_one_line(record: HeldOutRecord, line: str) -> None:
    assert record.line() == line


@pytest.mark.parametrize(
    ("train", "held_out", "message"),
    [
        (
            selection(("tain",)),
            None,
            "no split 'tain' for train.split; the environment has: train, extra, test, empty",
        ),
        (TRAIN, held_out_rule("val"), "no split 'val' for held_out.split"),
        (selection(("train",), 101), None, "101 tasks, but split train has 100.*\n.*at most 100"),
        (
            selection(("train",), indices=(5, 100)),
            None,
            r"indices \[100\], but split train has tasks 0 to 99",
        ),
        (selection(("train",), indices=(-1,)), None, r"indices \[-1\]"),
        (selection(("train",), indices=()), None, "no task at all"),
        (selection(("empty",)), None, "'empty' has no tasks"),
        (
            selection(("train",), indices=(1, 2)),
            held_out_rule("train", indices=(2,)),
            r"\[2\].*held out as well",
        ),
        (TRAIN, held_out_rule("train", indices=tuple(range(100))), "no task at all"),
    ],
)
def test_an_impossible_selection_is_refused_with_the_way_out(
    train: SelectionSpec, held_out: HeldOutSpec | None, message: str
) -> None:
    with pytest.raises(XpError, match=message):
        select(train, held_out)


def test_all_training_tasks_and_a_share_held_out_are_refused() -> None:
    with pytest.raises(XpError) as error:
        choose(
            selection(("train",), num_tasks=100), held_out_rule(fraction=0.2), Sized({"train": 100})
        )
    text = str(error.value)
    assert "train selects 100 tasks, but" in text
    assert "of the 100 of split train are held out" in text
    for fix in (
        "train.num_tasks=",
        "held_out=null",
        "held_out.split=train held_out.overlap=allowed",
    ):
        assert fix in text


def test_one_task_cannot_be_trained_on_and_held_out() -> None:
    with pytest.raises(XpError, match=r"one task.*\n.*held_out to null"):
        choose(TRAIN, held_out_rule(fraction=0.2), Sized({"train": 1}))


def test_blocks_hold_every_task_once_and_held_out_ones_come_first() -> None:
    config = prepare_of(
        {"m": member_of(replace(RULES, name="m"), TRAIN, held_out_rule("test"), 1.0)}, 0.0, 1
    )
    train: list[Position] = [("train", index) for index in range(SHARD_TASKS + 5)]
    tasks = {Purpose.TRAIN: [*train, ("extra", 7)], Purpose.HELD_OUT: [("test", 4), ("test", 2)]}
    blocks = cut_into_blocks(config, {"m": SelectedTasks(tasks, HeldOutRecord(Rule.SPLIT))})
    assert [(b.number, b.purpose, b.split, len(b.indices)) for b in blocks] == [
        (0, "held_out", "test", 2),
        (1, "train", "train", SHARD_TASKS),
        (2, "train", "train", 5),
        (3, "train", "extra", 1),
    ]
    assert blocks[0].task_id(4) == "m/test/4"


@pytest.mark.parametrize(("listed", "expected"), [(None, None), (2, 2), (1, XpError)])
def test_a_list_of_tasks_is_as_long_as_their_number(
    listed: int | None, expected: Any, tmp_path: Path
) -> None:
    class Listing:
        def num_tasks(self, split: str) -> int:
            return len([split, split])

        def listed(self, split: str) -> list[Task] | None:
            return (
                None
                if listed is None
                else [Task("e", split, index, {"q": index}) for index in range(listed)]
            )

    splits = ProviderSplits(FakeWorld(tmp_path).member(), Listing())  # type: ignore[arg-type]
    if expected is XpError:
        with pytest.raises(XpError, match="it counts 2 tasks in train, and lists 1"):
            splits.contents("train")
    else:
        found = splits.contents("train")
        assert (found if found is None else len(set(found))) == expected


def test_an_environment_without_training_tasks_names_the_split_that_it_has() -> None:
    found = evaluation_only(HeldOutRecord(Rule.SPLIT, ("test",), (), {"test": 6}, 6, 6))
    assert "the environment has only split test, which is for evaluation only" in found
    assert "set env.train.split=test, which trains on it" in found
    assert "env.train.split=NAME" in evaluation_only(None)
