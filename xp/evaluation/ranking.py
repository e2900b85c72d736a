"""Compares the best of several runs with the next one: over seeds if there are several, else task by task."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev, variance
from typing import Final

from xp.episode.clusters import is_rounding
from xp.errors import XpError
from xp.evaluation.results import compare_all
from xp.evaluation.settings import settings
from xp.evaluation.statistics import interval, student
from xp.runs.differences import brief, words_of
from xp.runs.leaderboard import RunRow

OPTIONS: Final = ("model", "algorithm", "backend")
NORMAL: Final = 1.96


@dataclass(frozen=True)
class ComparedSpec:
    """Runs of one spec, which differ only by their seeds."""

    label: str
    runs: tuple[RunRow, ...]
    rewards: tuple[float, ...]

    @property
    def mean(self) -> float:
        return fmean(self.rewards)


def sentence(outputs: Path, rows: Sequence[RunRow]) -> str | None:
    """Compares runs on one environment; None: fewer than two have a held-out reward.

    Args:
        outputs: the outputs root.
        rows: best first.
    """
    scored = [row for row in rows if row.after is not None]
    if len(scored) < 2:
        return None
    points = sorted(_points(scored), key=lambda point: -point.mean)
    if len(points) == 1:
        return f"{len(scored)} seeds of one spec: mean held-out reward {points[0].mean:.3f}, {_over_seeds(points[0])}"
    first, second = points[0], points[1]
    own = f"{first.label} is highest with {first.mean:.3f}; against {second.label}"
    difference = first.mean - second.mean
    bounds, basis = _interval(outputs, first, second)
    if bounds is None:
        return f"{own}: {difference:+.3f}, without further statistics: {basis}"
    low, high = bounds
    told = "a difference is shown" if low > 0 else "not distinguishable; more seeds or episodes"
    return f"{own}: {difference:+.3f} (95 % {low:+.3f} to {high:+.3f}, {basis}): {told}"


def _points(rows: Sequence[RunRow]) -> list[ComparedSpec]:
    varied = [name for name in OPTIONS if len({getattr(row, name) for row in rows}) > 1]
    groups: dict[str, list[RunRow]] = {}
    for row in rows:
        words = words_of({**{name: getattr(row, name) for name in varied}, **row.differs})
        groups.setdefault(words, []).append(row)
    return [
        ComparedSpec(brief(words) or own[0].run, tuple(own), tuple(row.after for row in own if row.after is not None))
        for words, own in groups.items()
    ]


def _varies(point: ComparedSpec) -> bool:
    return not is_rounding(max(point.rewards) - min(point.rewards), point.rewards)


def _over_seeds(point: ComparedSpec) -> str:
    if not _varies(point):
        return "the same for each"
    number = len(point.rewards)
    low, high = interval(fmean(point.rewards), stdev(point.rewards) / math.sqrt(number), number)
    return f"95 % {low:.3f} to {high:.3f} over seeds"


def _interval(outputs: Path, first: ComparedSpec, second: ComparedSpec) -> tuple[tuple[float, float] | None, str]:
    """Bounds of first minus second, and a text about the samples."""
    if len(first.rewards) > 1 and len(second.rewards) > 1:
        return _welch(first, second)
    one, other = first.runs[0], second.runs[0]
    try:
        (found,) = compare_all(outputs, [other.run, one.run], settings({}).eval.margin)
    except XpError:
        return _by_errors(one, other)
    if found.low is None or found.high is None:
        is_same = found.difference == 0
        return None, "every task has the same reward in both" if is_same else "all tasks differ alike"
    return (found.low, found.high), f"paired over {found.num_tasks} tasks, one seed each"


def _welch(first: ComparedSpec, second: ComparedSpec) -> tuple[tuple[float, float] | None, str]:
    if not _varies(first) and not _varies(second):
        return None, "the seeds do not vary"
    one, other = (variance(point.rewards) / len(point.rewards) for point in (first, second))
    # Welch's test: degrees of freedom by Satterthwaite.
    freedom = (one + other) ** 2 / (one**2 / (len(first.rewards) - 1) + other**2 / (len(second.rewards) - 1))
    reach = student(freedom) * math.sqrt(one + other)
    difference = fmean(first.rewards) - fmean(second.rewards)
    return (difference - reach, difference + reach), f"over {len(first.rewards)} and {len(second.rewards)} seeds"


def _by_errors(one: RunRow, other: RunRow) -> tuple[tuple[float, float] | None, str]:
    """Comparison by the two standard errors, if the tasks differ or are not recorded."""
    if one.stderr is None or other.stderr is None or one.after is None or other.after is None:
        return None, "the evaluations have no standard error"
    reach = NORMAL * (one.stderr**2 + other.stderr**2) ** 0.5
    difference = one.after - other.after
    return (difference - reach, difference + reach), "by their standard errors, one seed each"
