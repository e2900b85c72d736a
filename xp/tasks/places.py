"""Positions of tasks within splits, computed instead of stored: a split may say that it has a billion of them."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping
from itertools import accumulate
from typing import Final

Place = tuple[str, int]
"""Split and position within it."""

LARGE: Final = 1_000_000
"""More tasks than this are never listed or shuffled as a whole."""
MOST_CHOSEN: Final = 10_000_000
"""Tasks that one selection may have."""


class Places:
    """All tasks of some splits in their order, except some.

    Args:
        sizes: split -> its tasks, in order.
        without: places that are left out; each lies within the splits.
    """

    def __init__(self, sizes: Mapping[str, int], without: Collection[Place] = ()) -> None:
        self._sizes = dict(sizes)
        self._ends = list(accumulate(self._sizes.values()))
        starts = dict(zip(self._sizes, [0, *self._ends], strict=False))
        left_out = sorted(starts[split] + index for split, index in set(without) if split in starts)
        # Each with the number of places before it that stay: a place's position counts those only.
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


def first(places: Places, count: int) -> list[Place]:
    return [places[position] for position in range(count)]


def drawn(places: Places, count: int, seed: str) -> list[Place]:
    """The first of all places in a random order; a larger draw of one seed begins with the smaller one.

    Up to LARGE places are shuffled as a list. Of more, only the part of the order that is wanted is computed.
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
