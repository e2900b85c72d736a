"""Standard error of a mean over episodes of which several belong to one task; standard library only.

Episodes of one task are correlated; the tasks are the independent samples. Every summary uses this formula, also in the
trainers' own Pythons; a test compares it with statsmodels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean


def clustered_stderr(groups: Sequence[Sequence[float]]) -> float | None:
    """Standard error of the mean over all values, clustered by group; None: fewer than two groups have values.

    This is the sandwich estimator of a regression on a constant with the correction G / (G - 1) (CR1).

    Args:
        groups: the values of each task; a task without values is ignored.
    """
    filled = [group for group in groups if group]
    num_groups = len(filled)
    if num_groups < 2:
        return None
    num_values = sum(map(len, filled))
    mean = fmean(value for group in filled for value in group)
    squares = math.fsum(math.fsum(value - mean for value in group) ** 2 for group in filled)
    return math.sqrt(squares * num_groups / (num_groups - 1)) / num_values
