"""Selects training and held-out tasks; a pure function, with the same result in every process."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Protocol

from xp.envs.rows import HELD_OUT_SPLITS
from xp.errors import ExitCode, XpError
from xp.lib.digest import digest_number
from xp.spec import HeldOutSpec, SelectionSpec
from xp.tasks.config import MemberConfig, PrepareConfig, Purpose
from xp.tasks.held_out import HeldOutRecord, Identity, Rule, named

SHARD_TASKS = 64


class Splits(Protocol):
    """Facts about splits for the selection; requested from the environment when needed."""

    def names(self) -> Sequence[str]: ...

    def num_tasks(self, split: str) -> int: ...

    def contents(self, split: str) -> Sequence[str] | None:
        """Digest of each task's prompt or content, in order; None if the environment only counts its tasks."""


@dataclass(frozen=True)
class SelectedTasks:
    """The selected tasks of one environment, in the order of the rows, with the rule."""

    tasks: Mapping[Purpose, Sequence[Position]]
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


def select_tasks(member: MemberConfig, splits: Splits) -> SelectedTasks:
    """Selects the tasks for each purpose; raises XpError, with a remedy, if the selection is impossible."""
    return _Selector(member, splits).all()


class _Selector:
    """Selection of one environment; caches the requested sizes."""

    def __init__(self, member: MemberConfig, splits: Splits) -> None:
        self._member = member
        self._splits = splits
        self._env = member.env.name
        self._train = member.train
        self._held_out = member.env.held_out
        self._names = splits.names()
        self._sizes: dict[str, int] = {}
        self._identity: Identity | None = None

    def all(self) -> SelectedTasks:
        names = self._train_splits()
        rule, sources, held_out = self._choose_held_out(names)
        is_kept_out = self._held_out is not None and not self._held_out.may_overlap
        train = self._choose_train(names, set(held_out) if is_kept_out else set())
        tasks = {Purpose.HELD_OUT: held_out, Purpose.TRAIN: train}
        if not train and not held_out:
            raise XpError(
                f"env {self._env}: no task at all: nothing to train on, and nothing is held out"
            )
        unused = tuple(name for name in self._names if name not in (*names, *sources))
        record = HeldOutRecord(
            rule,
            sources,
            names,
            dict(self._sizes),
            len(held_out),
            len(train),
            identity=self._identity,
            unused=unused,
        )
        return SelectedTasks(
            {purpose: positions for purpose, positions in tasks.items() if positions}, record
        )

    def _train_splits(self) -> tuple[str, ...]:
        """Training splits; empty if the environment has only splits for evaluation."""
        if (
            self._train.split == ("train",)
            and self._names
            and set(self._names) <= set(HELD_OUT_SPLITS)
        ):
            return ()
        for split in self._train.split:
            self._check(split, "train")
        return self._train.split

    def _choose_held_out(
        self, train: tuple[str, ...]
    ) -> tuple[Rule, tuple[str, ...], list[Position]]:
        held_out = self._held_out
        if held_out is None:
            return Rule.NOTHING, (), []
        split = self._held_out_split(held_out, train)
        if split is not None and (
            split not in train or held_out.may_overlap or held_out.indices is not None
        ):
            chosen = _take(
                f"env {self._env}: held_out selects", held_out, (split,), self._positions((split,))
            )
            return Rule.SPLIT, (split,), chosen
        sources = train if split is None else (split,)
        return Rule.SHARE, sources, self._share(held_out, sources)

    def _held_out_split(self, held_out: HeldOutSpec, train: tuple[str, ...]) -> str | None:
        if held_out.split is not None:
            self._check(held_out.split, "held_out")
            return held_out.split
        offered = (name for name in HELD_OUT_SPLITS if name in self._names and name not in train)
        return next((name for name in offered if self._size(name) > 0), None)

    def _share(self, held_out: HeldOutSpec, sources: tuple[str, ...]) -> list[Position]:
        """Held-out share of an exact size: the tasks with the smallest hashes. When a split grows, only tasks whose
        hash is near the largest of these may change sides."""
        positions = self._positions(sources)
        if len(positions) < 2:
            raise XpError(
                f"env {self._env}: {named(sources)} has one task, which cannot be trained on and held out\n"
                "set held_out to null, or held_out.overlap=allowed with held_out.split"
            )
        ranks = self._ranks(held_out.seed, sources)
        order = sorted(positions, key=lambda position: (ranks[position], position))
        count = math.ceil(round(held_out.fraction * len(positions), 6))
        count = min(count, held_out.num_tasks or count)
        share = set(order[: max(1, min(count, len(positions) - 1))])
        return [position for position in positions if position in share]

    def _ranks(self, seed: int, sources: tuple[str, ...]) -> dict[Position, float]:
        contents = {split: self._splits.contents(split) for split in sources}
        self._identity = (
            Identity.INDEX
            if any(content is None for content in contents.values())
            else Identity.CONTENT
        )
        ranks = {}
        for split, index in self._positions(sources):
            content = contents[split]
            if content is not None and self._identity is Identity.CONTENT:
                what = content[index]
            else:
                what = f"{split}/{index}"
            ranks[split, index] = _rank(seed, what)
        return ranks

    def _choose_train(self, names: tuple[str, ...], held_out: set[Position]) -> list[Position]:
        if not names:
            return []
        positions = self._positions(names)
        held_out = {position for position in held_out if position[0] in names}
        named_for_training = set(self._train.indices or ())
        both = [
            position
            for position in positions
            if position in held_out and position[1] in named_for_training
        ]
        if both:
            raise XpError(
                f"env {self._env}: tasks {[index for _, index in both][:5]} of {named(names)} are named for training,"
                f" and are held out as well\n{_fixes('other train.indices')}"
            )
        rest = [position for position in positions if position not in held_out]
        number = self._train.num_tasks
        if held_out and number is not None and len(rest) < number <= len(positions):
            raise XpError(
                f"env {self._env}: train selects {number} tasks, but {len(positions) - len(rest)} of the {len(positions)} of"
                f" {named(names)} are held out\n{_fixes(f'train.num_tasks={len(rest)}, or null for all the others')}"
            )
        chosen = _take(f"env {self._env}: train selects", self._train, names, rest, positions)
        return sorted(chosen, key=lambda position: names.index(position[0]))

    def _positions(self, splits: tuple[str, ...]) -> list[Position]:
        for split in splits:
            if self._size(split) <= 0:
                raise XpError(f"env {self._env}: split {split!r} has no tasks", ExitCode.TASKS)
        return [(split, index) for split in splits for index in range(self._size(split))]

    def _size(self, split: str) -> int:
        if split not in self._sizes:
            self._sizes[split] = self._splits.num_tasks(split)
        return self._sizes[split]

    def _check(self, split: str, purpose: str) -> None:
        if split not in self._names:
            what = f"there is no split {split!r} for {purpose}.split"
            raise XpError(
                f"env {self._env}: {what}; the environment has: {', '.join(self._names) or 'none'}"
            )


def _fixes(fewer: str) -> str:
    return (
        f"set {fewer}; set held_out=null (nothing is held out, and nothing is evaluated); or set held_out.split=train"
        " held_out.overlap=allowed (evaluated on training tasks, and labelled so)"
    )


def _rank(seed: int, what: str) -> float:
    """Pseudo-random number from 0 (included) to 1 (excluded), from a hash."""
    return digest_number(f"{seed}/{what}", 8) / 2**64


def _take(
    where: str,
    selection: SelectionSpec | HeldOutSpec,
    splits: tuple[str, ...],
    available: Sequence[Position],
    whole: Sequence[Position] | None = None,
) -> list[Position]:
    """The selected positions among the available ones; indices are positions within the whole split."""
    if selection.indices == ():
        raise XpError(f"{where} no task at all: its indices are an empty list")
    whole = available if whole is None else whole
    if selection.indices is not None:
        outside = [index for index in selection.indices if not 0 <= index < len(whole)]
        if outside:
            raise XpError(
                f"{where} indices {outside[:5]}, but {named(splits)} has tasks 0 to {len(whole) - 1}"
            )
        return [whole[index] for index in dict.fromkeys(selection.indices)]
    if selection.num_tasks is None:
        count = len(available)
    else:
        count = selection.num_tasks
    if count > len(available):
        raise XpError(
            f"{where} {count} tasks, but {named(splits)} has {len(available)} for it\n"
            f"set num_tasks to at most {len(available)}, or to null for all of them"
        )
    if count == 0:
        raise XpError(f"{where} no task at all from {named(splits)}", ExitCode.TASKS)
    order = list(available)
    if selection.shuffle:  # a larger draw with the same seed begins with the smaller one
        random.Random(f"{selection.seed}/{'+'.join(splits)}").shuffle(order)
    return order[:count]


def cut_into_blocks(config: PrepareConfig, selected: Mapping[str, SelectedTasks]) -> list[Block]:
    """All tasks in the order of the rows; held-out tasks first, since training excludes tasks with their hashes."""
    blocks: list[Block] = []
    for purpose in (Purpose.HELD_OUT, Purpose.TRAIN):
        for name in sorted(config.members):
            positions = selected[name].tasks.get(purpose, ())
            for split, run in groupby(positions, lambda position: position[0]):
                indices = tuple(index for _, index in run)
                for start in range(0, len(indices), SHARD_TASKS):
                    blocks.append(
                        Block(
                            len(blocks), name, purpose, split, indices[start : start + SHARD_TASKS]
                        )
                    )
    return blocks


Position = tuple[str, int]
"""Split and position within it."""
