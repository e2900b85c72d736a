"""Standard error of a mean over episodes, several of which belong to one task; standard library only.

Episodes of one task are correlated; the tasks are the independent samples. Every summary uses this formula, also in the
trainers' own Pythons; a test compares it with statsmodels.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Final

ROUNDING: Final = 1e-9
"""Largest spread that counts as 0, as a share of the largest reward, or of 1 if that is less."""


def is_rounding(spread: float, rewards: Iterable[float]) -> bool:
    """Returns whether a spread is only rounding of computations with these rewards, which counts as 0."""
    return spread <= ROUNDING * max(1.0, max(map(abs, rewards)))


Limits = tuple[float | None, float | None]
"""Smallest and largest possible reward. None means unknown."""


def reward_limits(rewards: Iterable[float | None], rule: Limits = (None, None)) -> Limits:
    """Limits of an environment's rewards: those of its rule, else 0 and 1 if all observed rewards are within them.

    Args:
        rewards: observed rewards. None means void.
        rule: limits that the reward rule sets.
    """
    values = [reward for reward in rewards if reward is not None]
    low, high = (0.0, 1.0) if values and min(values) >= 0 and max(values) <= 1 else (None, None)
    return (low if rule[0] is None else rule[0], high if rule[1] is None else rule[1])


def within(value: float, limits: Limits) -> float:
    """The nearest value that the limits permit."""
    low, high = limits
    value = value if low is None else max(low, value)
    return value if high is None else min(high, value)


def clustered_stderr(groups: Sequence[Sequence[float]]) -> float | None:
    """Standard error of the mean over all values, clustered by group. None means that fewer than two groups have
    values.

    This is the sandwich estimator of a regression on a constant with the correction G / (G - 1) (CR1). A spread that is
    only rounding is 0.

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
    error = math.sqrt(squares * num_groups / (num_groups - 1)) / num_values
    if is_rounding(error, (value for group in filled for value in group)):
        return 0.0
    return error
