"""A curve in one line of text."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean
from typing import Final

BARS: Final = "▁▂▃▄▅▆▇█"
PLAIN: Final = ".:-=+*%@"
"""Characters for terminals that cannot show block characters."""
WIDTH: Final = 32
CELLS: Final = 10


def sparkline(values: Sequence[float], width: int = WIDTH) -> str:
    """One character per value, scaled from the smallest to the largest; more than `width` values are averaged."""
    if not values:
        return ""
    size = min(width, len(values))
    edges = [round(at * len(values) / size) for at in range(size + 1)]
    means = [fmean(values[begin:end]) for begin, end in pairwise(edges)]
    low, high = min(means), max(means)
    marks = _marks(BARS, PLAIN)
    steps = len(marks) - 1
    return "".join(marks[0 if high == low else round((one - low) / (high - low) * steps)] for one in means)


def bar(share: float) -> str:
    """Progress bar with its percentage."""
    marks = _marks("█░", "#.")
    done = round(min(1.0, max(0.0, share)) * CELLS)
    return f"{marks[0] * done}{marks[1] * (CELLS - done)} {share:.0%}"


def _marks(wanted: str, otherwise: str) -> str:
    try:
        wanted.encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return otherwise
    return wanted
