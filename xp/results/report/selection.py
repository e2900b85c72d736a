"""Chooses the episodes with full text in a page: best, median and worst groups of each step, and all void ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Final

from xp.lib.nested import grouped
from xp.results.report.episodes import EpisodeEntry

NUM_PAIRS: Final = 12
"""Number of tasks with the largest gain, with the largest loss, and with a median change, whose episodes before and
after training have full text."""
BEFORE: Final = "evaluate/before"
AFTER: Final = "evaluate/after"
Group = tuple[int, str, int]
"""Attempt, phase and step."""


class Extent(StrEnum):
    """Extent of the episodes with full text in a page."""

    NONE = "none"
    CHOSEN = "chosen"
    ALL = "all"


def chosen(entries: Sequence[EpisodeEntry], extent: Extent) -> dict[Group, list[int]]:
    """Numbers of the episodes with full text, by attempt, phase and step."""
    groups = grouped(
        ((entry.attempt, entry.phase, entry.step), number) for number, entry in enumerate(entries)
    )
    if extent is Extent.ALL:
        return groups
    if extent is Extent.NONE:
        return {}
    pairs = set(_pairs(entries))
    return {
        group: sorted(_of_step(entries, numbers) | (pairs & {*numbers}))
        for group, numbers in groups.items()
    }


def ranked(entries: Sequence[EpisodeEntry], numbers: Iterable[int]) -> list[int]:
    """The scored episodes among these, worst first."""
    scored = [number for number in numbers if entries[number].reward is not None]
    return sorted(scored, key=lambda number: (entries[number].reward or 0.0, number))


def _of_step(entries: Sequence[EpisodeEntry], numbers: Sequence[int]) -> set[int]:
    selected = {number for number in numbers if entries[number].reward is None}
    order = ranked(entries, numbers)
    if order:
        tasks = {entries[number].task for number in (order[0], order[len(order) // 2], order[-1])}
        selected |= {number for number in numbers if entries[number].task in tasks}
    truncated = [number for number in numbers if entries[number].status == "truncated"]
    malformed = [number for number in numbers if entries[number].malformed]
    return selected.union(truncated[:1], malformed[:1])


def _pairs(entries: Sequence[EpisodeEntry]) -> list[int]:
    """Episodes before and after training of the held-out tasks with the largest, smallest and median change."""
    sides = {phase: _by_task(entries, phase) for phase in (BEFORE, AFTER)}
    both = sides[BEFORE].keys() & sides[AFTER].keys()
    change = {
        task: _mean(entries, sides[AFTER][task]) - _mean(entries, sides[BEFORE][task])
        for task in sorted(both)
    }
    order = sorted(change, key=lambda task: change[task])
    middle = max(0, len(order) // 2 - NUM_PAIRS // 2)
    tasks = {*order[:NUM_PAIRS], *order[middle : middle + NUM_PAIRS], *order[-NUM_PAIRS:]}
    return [number for task in tasks for side in sides.values() for number in side[task]]


def _by_task(entries: Sequence[EpisodeEntry], phase: str) -> Mapping[str, list[int]]:
    """Task -> numbers of its entries, from the last attempt that played it."""
    last = max((entry.attempt for entry in entries if entry.phase == phase), default=0)
    return grouped(
        (entry.task, number)
        for number, entry in enumerate(entries)
        if entry.phase == phase and entry.attempt == last and entry.reward is not None
    )


def _mean(entries: Sequence[EpisodeEntry], numbers: Sequence[int]) -> float:
    return sum(entries[number].reward or 0.0 for number in numbers) / len(numbers)
