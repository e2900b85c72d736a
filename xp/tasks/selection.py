"""Decides which tasks of which splits are for training and which are held out: pure, and the same in every process."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from xp.errors import ExitCode, XpError
from xp.tasks.config import MemberConfig, PrepareConfig, Purpose, Selection

SHARD_TASKS = 64


@dataclass(frozen=True)
class Block:
    """The tasks of one shard: consecutive in the selection, of one environment, split and purpose."""

    number: int
    """Position among all blocks, which is also the order of the rows."""
    env: str
    purpose: Purpose
    split: str
    indices: tuple[int, ...]

    def task_id(self, index: int) -> str:
        return f"{self.env}/{self.split}/{index}"


def select_tasks(
    member: MemberConfig, splits: Sequence[str], num_tasks: Callable[[str], int]
) -> dict[Purpose, list[int]]:
    """The indices for each purpose, in the order of the rows.

    Args:
        member: what is wanted.
        splits: the splits that the environment has.
        num_tasks: how many tasks one of them has.
    """
    name, train, held_out = member.env.name, member.train, member.held_out
    _check_split(name, "train", train.split, splits)
    if held_out is None:
        return {Purpose.TRAIN: _select(name, "train", train, _all_of(name, train.split, num_tasks))}
    _check_split(name, "held_out", held_out.split, splits)
    if held_out.split == train.split:
        return _select_from_one_split(name, train, held_out, _all_of(name, train.split, num_tasks))
    return {
        Purpose.HELD_OUT: _select(name, "held_out", held_out, _all_of(name, held_out.split, num_tasks)),
        Purpose.TRAIN: _select(name, "train", train, _all_of(name, train.split, num_tasks)),
    }


def _select_from_one_split(
    name: str, train: Selection, held_out: Selection, available: Sequence[int]
) -> dict[Purpose, list[int]]:
    if held_out.indices is not None:
        chosen = _select(name, "held_out", held_out, available)
        share = set(chosen)
    else:
        share = set(_hashed_share(name, held_out, available))
        chosen = _select(name, "held_out", held_out, [index for index in available if index in share])
    if train.indices is not None and share.intersection(train.indices):
        both = sorted(share.intersection(train.indices))[:5]
        raise XpError(
            f"env {name}: tasks {both} of split {train.split!r} are named for training, and are held out as well"
        )
    rest = _select(name, "train", train, [index for index in available if index not in share], len(available))
    return {Purpose.HELD_OUT: chosen, Purpose.TRAIN: rest}


def _hashed_share(name: str, held_out: Selection, available: Sequence[int]) -> list[int]:
    """Chosen by a hash of the index, so that a split that grows keeps its held-out tasks held out."""
    ranks = {index: _rank(held_out.seed, held_out.split, index) for index in available}
    if held_out.fraction is not None:
        return [index for index in available if ranks[index] < held_out.fraction]
    if held_out.num_tasks is None:
        raise XpError(
            f"env {name}: train and held_out both take the split {held_out.split!r}\n"
            "set held_out.fraction (a share of it, chosen by hash), held_out.num_tasks, or another held_out.split"
        )
    return sorted(available, key=ranks.__getitem__)[: held_out.num_tasks]


def _rank(seed: int, split: str, index: int) -> float:
    return int.from_bytes(hashlib.sha256(f"{seed}/{split}/{index}".encode()).digest()[:8]) / 2**64


def _select(
    name: str, purpose: str, selection: Selection, available: Sequence[int], num_total: int | None = None
) -> list[int]:
    where = f"env {name}: {purpose} selects"
    if selection.indices == ():
        raise XpError(f"{where} no task at all: its indices are an empty list")
    if selection.indices is not None:
        size = len(available) if num_total is None else num_total
        wrong = [index for index in selection.indices if not 0 <= index < size]
        if wrong:
            raise XpError(f"{where} indices {wrong[:5]}, but split {selection.split!r} has tasks 0 to {size - 1}")
        return list(dict.fromkeys(selection.indices))
    wanted = len(available) if selection.num_tasks is None else selection.num_tasks
    if wanted > len(available):
        raise XpError(
            f"{where} {wanted} tasks, but split {selection.split!r} has {len(available)} for it\n"
            f"set {purpose}.num_tasks to at most {len(available)}, or to null for all of them"
        )
    if wanted == 0:
        raise XpError(f"{where} no task at all from split {selection.split!r}", ExitCode.TASKS)
    order = list(available)
    if selection.shuffle:
        random.Random(f"{selection.seed}/{selection.split}").shuffle(order)
    return order[:wanted]


def _check_split(name: str, purpose: str, split: str, splits: Sequence[str]) -> None:
    if split not in splits:
        legal = ", ".join(splits) or "none"
        raise XpError(f"env {name}: there is no split {split!r} for {purpose}.split; the environment has: {legal}")


def _all_of(name: str, split: str, num_tasks: Callable[[str], int]) -> range:
    count = num_tasks(split)
    if count <= 0:
        raise XpError(f"env {name}: split {split!r} has no tasks", ExitCode.TASKS)
    return range(count)


def cut_into_blocks(config: PrepareConfig, selected: dict[str, dict[Purpose, list[int]]]) -> list[Block]:
    """All tasks in the order of the rows: held-out ones first, because their hashes decide what training leaves out."""
    blocks: list[Block] = []
    for purpose in (Purpose.HELD_OUT, Purpose.TRAIN):
        for name, member in sorted(config.members.items()):
            indices = selected[name].get(purpose, [])
            selection = member.train if purpose is Purpose.TRAIN else member.held_out
            for start in range(0, len(indices), SHARD_TASKS):
                chunk = tuple(indices[start : start + SHARD_TASKS])
                assert selection is not None
                blocks.append(Block(len(blocks), name, purpose, selection.split, chunk))
    return blocks
