"""Selects training and held-out tasks; a pure function, with the same result in every process."""

from __future__ import annotations

import hashlib
import math
import random
from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby, islice
from typing import Final, Protocol

from xp.envs.base import MOST_TASKS
from xp.errors import ExitCode, XpError
from xp.tasks.config import HeldOut, MemberConfig, PrepareConfig, Purpose, Selection
from xp.tasks.held_out import HELD_OUT_SPLITS, HeldOutRecord, Identity, Rule, named

SHARD_TASKS = 64


class Splits(Protocol):
    """Facts about splits for the selection; requested from the environment when needed."""

    def names(self) -> Sequence[str]: ...

    def num_tasks(self, split: str) -> int: ...

    def contents(self, split: str) -> Sequence[str] | None:
        """Digest of each task's content, in order; None if the environment only counts its tasks."""


@dataclass(frozen=True)
class Selected:
    """The selected tasks of one environment, in the order of the rows, with the rule."""

    tasks: Mapping[Purpose, Sequence[Place]]
    record: HeldOutRecord


@dataclass(frozen=True)
class Block:
    """The tasks of one shard: consecutive tasks of one environment, split and purpose."""

    number: int
    """Position among all blocks, in the order of the rows."""
    env: str
    purpose: Purpose
    split: str
    indices: tuple[int, ...]

    def task_id(self, index: int) -> str:
        return f"{self.env}/{self.split}/{index}"


def select_tasks(member: MemberConfig, splits: Splits) -> Selected:
    """Selects the tasks for each purpose; raises XpError, with a remedy, if the selection is impossible."""
    return _Selecting(member, splits).all()


class _Selecting:
    """Selection of one environment; caches the requested sizes."""

    def __init__(self, member: MemberConfig, splits: Splits) -> None:
        self._member, self._splits = member, splits
        self._env, self._train, self._held_out = member.env.name, member.train, member.held_out
        self._names = splits.names()
        self._sizes: dict[str, int] = {}
        self._identity: Identity | None = None

    def all(self) -> Selected:
        names = self._train_splits()
        rule, sources, held_out = self._choose_held_out(names)
        is_kept_out = self._held_out is not None and not self._held_out.may_overlap
        train = self._choose_train(names, set(held_out) if is_kept_out else set())
        tasks = {Purpose.HELD_OUT: held_out, Purpose.TRAIN: train}
        if not train and not held_out:
            raise XpError(f"env {self._env}: no task at all: nothing to train on, and nothing is held out")
        record = HeldOutRecord(
            rule, sources, names, dict(self._sizes), len(held_out), len(train), identity=self._identity
        )
        return Selected({purpose: places for purpose, places in tasks.items() if places}, record)

    def _train_splits(self) -> tuple[str, ...]:
        """Training splits; empty if the environment has only splits for evaluation."""
        if self._train.splits == ("train",) and self._names and set(self._names) <= set(HELD_OUT_SPLITS):
            return ()
        for split in self._train.splits:
            self._check(split, "train")
        return self._train.splits

    def _choose_held_out(self, train: tuple[str, ...]) -> tuple[Rule, tuple[str, ...], list[Place]]:
        held_out = self._held_out
        if held_out is None:
            return Rule.NOTHING, (), []
        split = self._held_out_split(held_out, train)
        if split is not None and (split not in train or held_out.may_overlap or held_out.indices is not None):
            chosen = _take(f"env {self._env}: held_out selects", held_out, self._places((split,)))
            return Rule.SPLIT, (split,), chosen
        sources = train if split is None else (split,)
        return Rule.SHARE, sources, self._share(held_out, sources)

    def _held_out_split(self, held_out: HeldOut, train: tuple[str, ...]) -> str | None:
        if held_out.split is not None:
            self._check(held_out.split, "held_out")
            return held_out.split
        offered = (name for name in HELD_OUT_SPLITS if name in self._names and name not in train)
        return next((name for name in offered if self._size(name) > 0), None)

    def _share(self, held_out: HeldOut, sources: tuple[str, ...]) -> list[Place]:
        """Held-out share of an exact size: the tasks with the smallest hashes. When a split grows, only tasks whose
        hash is near the largest of these may change sides."""
        places = self._places(sources)
        if len(places) < 2:
            raise XpError(
                f"env {self._env}: {named(sources)} has one task, which cannot be trained on and held out\n"
                "set held_out to null, or held_out.overlap=allowed with held_out.split"
            )
        if len(places) > LARGE:
            return self._share_of_many(held_out, places)
        ranks = self._ranks(held_out.seed, sources)
        order = sorted(places, key=lambda place: (ranks[place], place))
        count = math.ceil(round(held_out.fraction * len(places), 6))
        count = min(count, held_out.num_tasks or count)
        share = set(order[: max(1, min(count, len(places) - 1))])
        return [place for place in places if place in share]

    def _share_of_many(self, held_out: HeldOut, places: Places) -> list[Place]:
        """The same share by index; with `num_tasks`, the first ones, which do not change when tasks are added."""
        self._identity = Identity.INDEX
        where = f"env {self._env}: held_out selects"
        if held_out.num_tasks is None or held_out.num_tasks > MOST_CHOSEN:
            _refuse_too_many(where, round(len(places) * held_out.fraction), "held_out.num_tasks")
        below = (place for place in places if _rank(held_out.seed, f"{place[0]}/{place[1]}") < held_out.fraction)
        chosen = list(islice(below, held_out.num_tasks))
        return chosen[: len(places) - 1] or [places[0]]

    def _ranks(self, seed: int, sources: tuple[str, ...]) -> dict[Place, float]:
        contents = {split: self._splits.contents(split) for split in sources}
        self._identity = Identity.INDEX if any(content is None for content in contents.values()) else Identity.CONTENT
        ranks = {}
        for split, index in self._places(sources):
            content = contents[split]
            what = content[index] if content is not None and self._identity is Identity.CONTENT else f"{split}/{index}"
            ranks[split, index] = _rank(seed, what)
        return ranks

    def _choose_train(self, names: tuple[str, ...], held_out: set[Place]) -> list[Place]:
        if not names:
            return []
        places = self._places(names)
        held_out = {place for place in held_out if place[0] in names}
        named_for_training = set(self._train.indices or ())
        both = sorted(
            (place for place in held_out if place[1] in named_for_training),
            key=lambda place: (names.index(place[0]), place[1]),
        )
        if both:
            raise XpError(
                f"env {self._env}: tasks {[index for _, index in both][:5]} of {named(names)} are named for training,"
                f" and are held out as well\n{_ways_out('other train.indices')}"
            )
        rest = places.without(held_out)
        number = self._train.num_tasks
        if held_out and number is not None and len(rest) < number <= len(places):
            raise XpError(
                f"env {self._env}: train selects {number} tasks, but {len(places) - len(rest)} of the {len(places)} of"
                f" {named(names)} are held out\n{_ways_out(f'train.num_tasks={len(rest)}, or null for all the others')}"
            )
        chosen = _take(f"env {self._env}: train selects", self._train, rest, places)
        return sorted(chosen, key=lambda place: names.index(place[0]))

    def _places(self, splits: tuple[str, ...]) -> Places:
        for split in splits:
            if self._size(split) <= 0:
                raise XpError(f"env {self._env}: split {split!r} has no tasks", ExitCode.TASKS)
        return Places({split: self._size(split) for split in splits})

    def _size(self, split: str) -> int:
        if split not in self._sizes:
            size = self._splits.num_tasks(split)
            if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= MOST_TASKS:
                raise XpError(
                    f"env {self._env}: split {split!r} says that it has {str(size)[:60]} tasks;"
                    f" expected a whole number from 0 to {MOST_TASKS}\nrepair num_tasks of the environment",
                    ExitCode.ENVIRONMENT,
                )
            self._sizes[split] = size
        return self._sizes[split]

    def _check(self, split: str, purpose: str) -> None:
        if split not in self._names:
            legal = ", ".join(self._names) or "none"
            raise XpError(
                f"env {self._env}: there is no split {split!r} for {purpose}.split; the environment has: {legal}"
            )


def _ways_out(fewer: str) -> str:
    return (
        f"three ways out: {fewer}; held_out=null (nothing is held out, and nothing is evaluated);"
        " or held_out.split=train held_out.overlap=allowed (evaluated on training tasks, and labelled so)"
    )


def _rank(seed: int, what: str) -> float:
    """Pseudo-random number from 0 (included) to 1 (excluded), from a hash."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{what}".encode()).digest()[:8]) / 2**64


def _refuse_too_many(where: str, count: int, key: str) -> None:
    if count > MOST_CHOSEN:
        raise XpError(
            f"{where} {count:,} tasks; at most {MOST_CHOSEN:,} can be prepared\nset {key} to how many are wanted"
        )


def _take(where: str, selection: Selection | HeldOut, available: Places, whole: Places | None = None) -> list[Place]:
    """The wanted places among the available ones; indices are positions within the whole split."""
    if selection.indices == ():
        raise XpError(f"{where} no task at all: its indices are an empty list")
    whole = available if whole is None else whole
    splits = named(whole.splits)
    if selection.indices is not None:
        wrong = [index for index in selection.indices if not 0 <= index < len(whole)]
        if wrong:
            raise XpError(f"{where} indices {wrong[:5]}, but {splits} has tasks 0 to {len(whole) - 1}")
        return [whole[index] for index in dict.fromkeys(selection.indices)]
    count = len(available) if selection.num_tasks is None else selection.num_tasks
    if count > len(available):
        raise XpError(
            f"{where} {count} tasks, but {splits} has {len(available)} for it\n"
            f"set num_tasks to at most {len(available)}, or to null for all of them"
        )
    if count == 0:
        raise XpError(f"{where} no task at all from {splits}", ExitCode.TASKS)
    _refuse_too_many(where, count, f"{'train' if isinstance(selection, Selection) else 'held_out'}.num_tasks")
    if selection.shuffle:
        return drawn(available, count, f"{selection.seed}/{'+'.join(whole.splits)}")
    return list(islice(available, count))


def cut_into_blocks(config: PrepareConfig, selected: Mapping[str, Selected]) -> list[Block]:
    """All tasks in the order of the rows; held-out tasks first, since training excludes tasks with their hashes."""
    blocks: list[Block] = []
    for purpose in (Purpose.HELD_OUT, Purpose.TRAIN):
        for name in sorted(config.members):
            places = selected[name].tasks.get(purpose, ())
            for split, run in groupby(places, lambda place: place[0]):
                indices = tuple(index for _, index in run)
                for start in range(0, len(indices), SHARD_TASKS):
                    blocks.append(Block(len(blocks), name, purpose, split, indices[start : start + SHARD_TASKS]))
    return blocks


Place = tuple[str, int]
"""Split and position within it."""

LARGE: Final = 1_000_000
"""Largest number of tasks that are listed or shuffled as a whole."""
MOST_CHOSEN: Final = 10_000_000
"""Largest number of tasks of one selection."""


class Places:
    """All tasks of some splits in order, without excluded ones.

    Args:
        sizes: split -> number of its tasks; the order is that of the mapping.
        without: excluded places, all within the splits.
    """

    def __init__(self, sizes: Mapping[str, int], without: Collection[Place] = ()) -> None:
        self._sizes = dict(sizes)
        self._ends = list(accumulate(self._sizes.values()))
        starts = dict(zip(self._sizes, [0, *self._ends], strict=False))
        left_out = sorted(starts[split] + index for split, index in set(without) if split in starts)
        # Each with the number of remaining places before it, which are the only ones that positions count.
        self._gaps = [position - number for number, position in enumerate(left_out)]

    @property
    def splits(self) -> tuple[str, ...]:
        return tuple(self._sizes)

    def without(self, places: Collection[Place]) -> Places:
        return Places(self._sizes, places)

    def __len__(self) -> int:
        return (self._ends[-1] if self._ends else 0) - len(self._gaps)

    def __getitem__(self, position: int) -> Place:
        if not 0 <= position < len(self):
            raise IndexError(position)
        place = position + bisect_right(self._gaps, position)
        number = bisect_right(self._ends, place)
        return self.splits[number], place - (self._ends[number - 1] if number else 0)

    def __iter__(self) -> Iterator[Place]:
        return map(self.__getitem__, range(len(self)))


def drawn(places: Places, count: int, seed: str) -> list[Place]:
    """The first `count` places of a random order; a larger draw with the same seed begins with the smaller one.

    Up to LARGE places are shuffled as a list; for more, only the needed part of the order is computed.
    """
    draw = random.Random(seed)
    if len(places) <= LARGE:
        order = list(places)
        draw.shuffle(order)
        return order[:count]
    moved: dict[int, int] = {}
    chosen = []
    for position in range(count):
        other = draw.randrange(position, len(places))
        chosen.append(places[moved.get(other, other)])
        moved[other] = moved.pop(position, position)
    return chosen
