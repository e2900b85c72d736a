"""Positions of tasks within splits, computed instead of stored, since a split may have a billion tasks."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping
from itertools import accumulate
from typing import Final

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


def first(places: Places, count: int) -> list[Place]:
    return [places[position] for position in range(count)]


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
