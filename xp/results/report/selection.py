"""Chooses the episodes with full text in a page: best, median and worst groups of each step, and all void ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Final

from xp.results.report.episodes import EpisodeRow

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


def chosen(rows: Sequence[EpisodeRow], extent: Extent) -> dict[Group, list[int]]:
    """Numbers of the episodes with full text, by attempt, phase and step."""
    groups: dict[Group, list[int]] = {}
    for number, row in enumerate(rows):
        groups.setdefault((row.attempt, row.phase, row.step), []).append(number)
    if extent is Extent.ALL:
        return groups
    if extent is Extent.NONE:
        return {}
    pairs = set(_pairs(rows))
    return {
        group: sorted(_of_step(rows, numbers) | (pairs & {*numbers}))
        for group, numbers in groups.items()
    }


def ranked(rows: Sequence[EpisodeRow], numbers: Iterable[int]) -> list[int]:
    """The scored episodes among these, worst first."""
    scored = [number for number in numbers if rows[number].reward is not None]
    return sorted(scored, key=lambda number: (rows[number].reward or 0.0, number))


def _of_step(rows: Sequence[EpisodeRow], numbers: Sequence[int]) -> set[int]:
    chosen_rows = {number for number in numbers if rows[number].reward is None}
    order = ranked(rows, numbers)
    if order:
        tasks = {rows[number].task for number in (order[0], order[len(order) // 2], order[-1])}
        chosen_rows |= {number for number in numbers if rows[number].task in tasks}
    chosen_rows |= set([number for number in numbers if rows[number].status == "truncated"][:1])
    chosen_rows |= set([number for number in numbers if rows[number].malformed][:1])
    return chosen_rows


def _pairs(rows: Sequence[EpisodeRow]) -> list[int]:
    """Episodes before and after training of the held-out tasks with the largest, smallest and median change."""
    sides = {phase: _by_task(rows, phase) for phase in (BEFORE, AFTER)}
    both = sides[BEFORE].keys() & sides[AFTER].keys()
    change = {
        task: _mean(rows, sides[AFTER][task]) - _mean(rows, sides[BEFORE][task])
        for task in sorted(both)
    }
    order = sorted(change, key=lambda task: change[task])
    middle = max(0, len(order) // 2 - NUM_PAIRS // 2)
    tasks = {*order[:NUM_PAIRS], *order[middle : middle + NUM_PAIRS], *order[-NUM_PAIRS:]}
    return [number for task in tasks for side in sides.values() for number in side[task]]


def _by_task(rows: Sequence[EpisodeRow], phase: str) -> Mapping[str, list[int]]:
    """Task -> numbers of its rows, from the last attempt that played it."""
    last = max((row.attempt for row in rows if row.phase == phase), default=0)
    by_task: dict[str, list[int]] = {}
    for number, row in enumerate(rows):
        if row.phase == phase and row.attempt == last and row.reward is not None:
            by_task.setdefault(row.task, []).append(number)
    return by_task


def _mean(rows: Sequence[EpisodeRow], numbers: Sequence[int]) -> float:
    return sum(rows[number].reward or 0.0 for number in numbers) / len(numbers)
