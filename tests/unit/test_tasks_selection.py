"""Which tasks are for training and which are held out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

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
from xp.tasks.held_out import HeldOutRecord, Identity, Rule
from xp.tasks.questions import ProviderSplits
from xp.tasks.selection import Position, SelectedTasks, ordered_tasks, select_tasks

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
    few, many, other = (
        select(selection(("train",), number, shuffle=True, seed=seed))[0]
        for number, seed in ((5, 1), (50, 1), (50, 2))
    )
    assert many[:5] == few
    assert sorted(many) != sorted(other)


@pytest.mark.parametrize(
    ("splits", "chosen"),
    [
        ("train dev eval validation test", "test"),
        ("dev eval validation train", "validation"),
        ("dev eval train", "eval"),
        ("dev train", "dev"),
    ],
)
def test_what_is_held_out_by_default_is_the_environments_own_second_split(
    splits: str, chosen: str
) -> None:
    sizes = Sized(dict.fromkeys(splits.split(), 10))
    record = choose(TRAIN, held_out_rule(fraction=0.2), sizes).record
    assert (record.rule, record.splits) == (Rule.SPLIT, (chosen,))
    assert (record.num_held_out, record.num_train) == (10, 10)


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


@given(st.integers(30, 200), st.integers(0, 200))
def test_a_share_is_exact_and_stable_when_the_split_grows(size: int, more: int) -> None:
    small, large = (
        set(
            select(
                TRAIN,
                held_out_rule("train", fraction=0.2),
                n,
            )[1]
        )
        for n in (size, size + more)
    )
    assert len(small) == -(-size // 5)
    assert len(large) == -(-(size + more) // 5)
    remaining = {index for index in large if index < size}
    assert remaining <= small or small <= remaining  # All that change, change to the same side.


def test_the_hash_is_of_the_content_only_where_all_splits_list_theirs() -> None:
    train = selection(("train", "extra"))
    contents = [f"task {number}" for number in range(20)]
    sizes = {"train": 20, "extra": 20}
    lists = {"train": contents, "extra": contents[::-1]}
    both = choose(train, held_out_rule(fraction=0.2), Sized(sizes, lists))
    assert both.record.identity == Identity.CONTENT
    some = choose(train, held_out_rule(fraction=0.2), Sized(sizes, {"train": contents}))
    assert some.record.identity == Identity.INDEX
    # The same content is on the same side in both splits.
    held_out = both.tasks[Purpose.HELD_OUT]
    first = {index for split, index in held_out if split == "train"}
    assert first == {19 - index for split, index in held_out if split == "extra"}


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
    ("train", "held_out", "message"),
    [
        (
            selection(("tain",)),
            None,
            "no split 'tain' for train.split; the environment has: train, extra, test, empty",
        ),
        (selection(("train",), 101), None, "101 tasks, but split train has 100.*\n.*at most 100"),
        (
            selection(("train",), indices=(5, 100)),
            None,
            r"indices \[100\], but split train has tasks 0 to 99",
        ),
        (selection(("train",), indices=(-1,)), None, r"indices \[-1\]"),
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


def test_one_task_cannot_be_trained_on_and_held_out() -> None:
    with pytest.raises(XpError, match=r"one task.*\n.*held_out to null"):
        choose(TRAIN, held_out_rule(fraction=0.2), Sized({"train": 1}))


def test_held_out_tasks_come_first() -> None:
    member = member_of(replace(RULES, name="m"), TRAIN, held_out_rule("test"), 1.0)
    train: list[Position] = [("train", 1), ("train", 0), ("extra", 7)]
    tasks = {Purpose.TRAIN: train, Purpose.HELD_OUT: [("test", 4), ("test", 2)]}
    chosen = {"m": SelectedTasks(tasks, HeldOutRecord(Rule.SPLIT))}
    ordered = ordered_tasks(prepare_of({"m": member}, 0.0, 1), chosen)
    assert [(task.purpose, task.task_id) for task in ordered] == [
        ("held_out", "m/test/4"),
        ("held_out", "m/test/2"),
        ("train", "m/train/1"),
        ("train", "m/train/0"),
        ("train", "m/extra/7"),
    ]


def test_a_list_of_tasks_is_as_long_as_their_number(tmp_path: Path) -> None:
    class Listing:
        def num_tasks(self, split: str) -> int:
            return len([split, split])

        def listed(self, split: str) -> list[Task]:
            return [Task("e", split, 0, {"q": 0})]

    splits = ProviderSplits(FakeWorld(tmp_path).member(), Listing())  # type: ignore[arg-type]
    with pytest.raises(XpError, match="it counts 2 tasks in train, and lists 1"):
        splits.contents("train")


@pytest.mark.parametrize(("fraction", "count"), [(0.1, 1), (0.4, 2), (0.9, 2)])
def test_a_share_is_rounded_up_and_leaves_a_task_to_each_side(fraction: float, count: int) -> None:
    train, held_out = select(TRAIN, held_out_rule("train", fraction=fraction), 3)
    assert (len(train), len(held_out)) == (3 - count, count)
