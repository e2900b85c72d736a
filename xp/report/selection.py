"""Choice of the episodes that a page holds in full: groups of best, median and worst of each step, and every void."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Final

from xp.report.episodes import EpisodeRow

NUM_PAIRS: Final = 12
"""Tasks with the largest gain, the largest loss and the median change whose two sides are held in full, of each."""
BEFORE: Final = "evaluate/before"
AFTER: Final = "evaluate/after"
Group = tuple[int, str, int]
"""Attempt, phase and step."""


class Extent(StrEnum):
    """Extent to which a page holds episodes in full."""

    NONE = "none"
    CHOSEN = "chosen"
    ALL = "all"


def chosen(rows: Sequence[EpisodeRow], extent: Extent) -> dict[Group, list[int]]:
    """Numbers of the episodes to hold in full, by attempt, phase and step."""
    groups: dict[Group, list[int]] = {}
    for number, row in enumerate(rows):
        groups.setdefault((row.attempt, row.phase, row.step), []).append(number)
    if extent is Extent.ALL:
        return groups
    if extent is Extent.NONE:
        return {}
    pairs = set(_pairs(rows))
    found = {}
    for group, numbers in groups.items():
        picked = _of_step(rows, numbers) | (pairs & set(numbers))
        found[group] = sorted(picked)
    return found


def ranked(rows: Sequence[EpisodeRow], numbers: Iterable[int]) -> list[int]:
    """The scored episodes among some, worst first."""
    scored = [number for number in numbers if rows[number].reward is not None]
    return sorted(scored, key=lambda number: (rows[number].reward or 0.0, number))


def _of_step(rows: Sequence[EpisodeRow], numbers: Sequence[int]) -> set[int]:
    found = {number for number in numbers if rows[number].reward is None}
    order = ranked(rows, numbers)
    if order:
        tasks = {rows[number].task for number in (order[0], order[len(order) // 2], order[-1])}
        found |= {number for number in numbers if rows[number].task in tasks}
    found |= set([number for number in numbers if rows[number].status == "truncated"][:1])
    found |= set([number for number in numbers if rows[number].malformed][:1])
    return found


def _pairs(rows: Sequence[EpisodeRow]) -> list[int]:
    """Episodes of the held-out tasks whose reward changed most, least and in the middle, before and after training."""
    sides = {phase: _by_task(rows, phase) for phase in (BEFORE, AFTER)}
    both = sides[BEFORE].keys() & sides[AFTER].keys()
    change = {task: _mean(rows, sides[AFTER][task]) - _mean(rows, sides[BEFORE][task]) for task in sorted(both)}
    order = sorted(change, key=lambda task: change[task])
    middle = max(0, len(order) // 2 - NUM_PAIRS // 2)
    tasks = {*order[:NUM_PAIRS], *order[middle : middle + NUM_PAIRS], *order[-NUM_PAIRS:]}
    return [number for task in tasks for side in sides.values() for number in side[task]]


def _by_task(rows: Sequence[EpisodeRow], phase: str) -> Mapping[str, list[int]]:
    """Rows by task, each of the last attempt that played it."""
    last = max((row.attempt for row in rows if row.phase == phase), default=0)
    found: dict[str, list[int]] = {}
    for number, row in enumerate(rows):
        if row.phase == phase and row.attempt == last and row.reward is not None:
            found.setdefault(row.task, []).append(number)
    return found


def _mean(rows: Sequence[EpisodeRow], numbers: Sequence[int]) -> float:
    return sum(rows[number].reward or 0.0 for number in numbers) / len(numbers)
