"""Compares two models on the same tasks: the difference, its interval, and a verdict."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from statistics import fmean, stdev
from typing import Final

from xp.episode.clusters import is_rounding, reward_limits
from xp.errors import ExitCode, XpError
from xp.lib.text import counted, first_of
from xp.results.evaluation.statistics import CONFIDENCE, Rewards, student

POWER: Final = 0.8
"""Power of the test for the smallest detectable difference."""
SHOWN: Final = 3
"""Number of tasks that a message names."""


@dataclass(frozen=True)
class Passes:
    """McNemar's test over the first scored episode of each task."""

    both: int
    only_first: int
    only_second: int
    neither: int
    p_value: float
    """P value of the exact, two-sided test."""


@dataclass(frozen=True)
class PairedComparison:
    """Comparison of model B with model A."""

    first: str
    second: str
    num_tasks: int
    """Tasks with a scored episode of both models."""
    num_left_out: int
    """Tasks for which one model has only void episodes."""
    mean_first: float
    mean_second: float
    difference: float
    """Mean over tasks of B's mean reward minus A's mean reward."""
    stderr: float | None
    low: float | None
    high: float | None
    p_value: float | None
    """P value of the two-sided paired t test. None means that there is only one task."""
    p_holm: float | None
    """`p_value` with Holm's adjustment for all comparisons of the command."""
    passes: Passes
    smallest: float | None
    """Smallest difference that this number of tasks shows with a power of 80 %. None means that the tasks' differences
    are equal."""
    margin: float
    """Largest difference that counts as equivalent."""
    p_equivalent: float | None
    """Larger p value of two one-sided tests; below 0.05 the models are equivalent within the margin."""
    enough_tasks: int | None
    """Number of tasks that shows a difference of the size of the margin with a power of 80 %.

    If all tasks have the same difference: the number that shows this difference, or equivalence within the margin.
    """
    verdict: str = field(init=False)
    """The verdict, as one sentence, which `replace` makes again."""
    unit: str = "task"
    """Noun of the paired samples: `task`, or `seed` of two settings."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "verdict", verdict(self))


def compare(
    names: tuple[str, str],
    first: Rewards,
    second: Rewards,
    pass_threshold: float,
    margin: float,
    *,
    unit: str = "task",
) -> PairedComparison:
    """Compares two evaluations task by task, or two settings seed by seed; `p_holm` is for a single comparison.

    Raises:
        XpError: PLAN if the tasks differ, or no task has rewards of both.
    """
    _check_same(names, first, second)
    scored = {task: (_scored(first[task]), _scored(second[task])) for task in first}
    pairs = {task: pair for task, pair in scored.items() if all(pair)}
    if not pairs:
        raise XpError(
            f"{names[0]} and {names[1]}: no task has a scored episode of both", ExitCode.PLAN
        )
    means = [(fmean(pair[0]), fmean(pair[1])) for pair in pairs.values()]
    rewards = [reward for pair in pairs.values() for side in pair for reward in side]
    differences = _without_rounding([after - before for before, after in means], rewards)
    reach = _reach(rewards)
    low, high, p_value = _interval(differences)
    if low is not None and high is not None and None not in reward_limits(rewards):
        low = max(low, -1.0)
        high = min(high, 1.0)
    spread = stdev(differences) if len(differences) > 1 else 0.0
    return PairedComparison(
        first=names[0],
        second=names[1],
        num_tasks=len(pairs),
        num_left_out=len(first) - len(pairs),
        mean_first=fmean(before for before, _ in means),
        mean_second=fmean(after for _, after in means),
        difference=fmean(differences),
        stderr=spread / len(differences) ** 0.5 if len(differences) > 1 else None,
        low=low,
        high=high,
        p_value=p_value,
        p_holm=p_value,
        passes=_passes(list(pairs.values()), pass_threshold),
        smallest=_smallest(len(differences), spread),
        margin=margin,
        p_equivalent=_equivalence(differences, margin, reach),
        enough_tasks=_enough(differences, margin, reach),
        unit=unit,
    )


def holm(comparisons: Sequence[PairedComparison]) -> list[PairedComparison]:
    """The comparisons with p values adjusted for their number, and with verdicts from these."""
    tested = [comparison.p_value for comparison in comparisons if comparison.p_value is not None]
    if len(tested) < 2:  # a single comparison needs no adjustment
        return list(comparisons)
    from statsmodels.stats.multitest import multipletests

    adjusted = iter(multipletests(tested, method="holm")[1])
    return [
        replace(comparison, p_holm=None if comparison.p_value is None else float(next(adjusted)))
        for comparison in comparisons
    ]


def verdict(result: PairedComparison) -> str:
    """Result as a sentence: better, worse, equivalent within the margin, or not enough tasks."""
    p_value = f"p {p_text(result.p_holm)}"
    if result.low is not None and result.high is not None:
        p_value = f"95 % interval {result.low:+.3f} to {result.high:+.3f}, {p_value}"
        if result.p_holm != result.p_value:
            p_value += " after Holm"
    size = f"by {abs(result.difference):.3f} ({p_value})"
    samples = counted(result.num_tasks, result.unit)
    is_equivalent = result.p_equivalent is not None and result.p_equivalent < 1 - CONFIDENCE
    if result.p_holm is not None and result.p_holm < 1 - CONFIDENCE:
        word = "better" if result.difference > 0 else "worse"
        text = f"{result.second} is {word} than {result.first} {size} on {samples}"
        if is_equivalent:
            text += f", which is within {result.margin:g} all the same: equivalent"
        return f"{text}."
    if is_equivalent:
        return (
            f"{result.second} and {result.first} are equivalent within {result.margin:g} on {samples}"
            f" (two one-sided tests, p {p_text(result.p_equivalent)})."
        )
    return (
        f"No difference between {result.second} and {result.first} was shown: {_missing(result)}."
    )


def _missing(result: PairedComparison) -> str:
    samples = counted(result.num_tasks, result.unit)
    if result.num_tasks < 2:
        return f"{samples} says nothing about others"
    if result.smallest is None:
        alike = "differ alike"
        shows = "it"
        if result.difference == 0:
            alike = "have the same reward in both"
            shows = f"equivalence within {result.margin:g}"
        return f"all {samples} {alike}, and {result.enough_tasks} such {result.unit}s would show {shows}"
    text = f"with {samples}, only a difference of {result.smallest:.3f} or more would be found"
    assert result.enough_tasks is not None  # the differences vary
    more = counted(max(result.enough_tasks, result.num_tasks + 1), result.unit)
    return f"{text}; for one of {result.margin:g}, about {more} are needed"


def _check_same(names: tuple[str, str], first: Rewards, second: Rewards) -> None:
    lines = []
    for name, rewards, other in ((names[0], first, second), (names[1], second, first)):
        only = sorted(set(rewards) - set(other))
        if only:
            lines.append(f"  only in {name}: {first_of(only, SHOWN)}")
    if lines:
        raise XpError(
            f"{names[0]} and {names[1]} were not evaluated on the same tasks, so that nothing is paired:\n"
            + "\n".join(lines)
            + "\nevaluate both with the same env, env.held_out and evaluation.num_tasks",
            ExitCode.PLAN,
        )


def _scored(rewards: Sequence[float | None]) -> list[float]:
    return [reward for reward in rewards if reward is not None]


def _without_rounding(differences: Sequence[float], rewards: Sequence[float]) -> list[float]:
    """The differences; equal ones if they are equal but for rounding, zeros if they are rounding alone."""
    if not is_rounding(max(differences) - min(differences), rewards):
        return list(differences)
    common = fmean(differences)
    return [0.0 if is_rounding(abs(common), rewards) else common] * len(differences)


def _interval(differences: Sequence[float]) -> tuple[float | None, float | None, float | None]:
    """Bounds and p value of the mean difference; for equal differences the sign test's p value, without bounds."""
    if len(differences) < 2:
        return None, None, None
    if max(differences) == min(differences):
        return None, None, 1.0 if differences[0] == 0 else 0.5 ** (len(differences) - 1)
    from scipy.special import stdtr

    center, error, degrees = _mean_with_error(differences)
    reach = student(degrees) * error
    return center - reach, center + reach, 2 * float(stdtr(degrees, -abs(center) / error))


def _mean_with_error(differences: Sequence[float]) -> tuple[float, float, int]:
    """Mean, its standard error, and the degrees of freedom of the t test."""
    number = len(differences)
    return fmean(differences), stdev(differences) / number**0.5, number - 1


def _passes(pairs: Sequence[tuple[Sequence[float], Sequence[float]]], threshold: float) -> Passes:
    from scipy.special import bdtr

    counts: Counter[tuple[bool, ...]] = Counter(
        (first[0] >= threshold, other[0] >= threshold) for first, other in pairs
    )
    both, only_first, only_second, neither = (
        counts[passed] for passed in product((True, False), repeat=2)
    )
    # McNemar's exact test: among tasks on which they differ, each side wins half by chance.
    p_value = min(1.0, 2 * float(bdtr(min(only_first, only_second), only_first + only_second, 0.5)))
    return Passes(both, only_first, only_second, neither, p_value)


def _equivalence(differences: Sequence[float], margin: float, reach: float) -> float | None:
    """The larger p value of two one-sided tests.

    If all tasks have the same difference there is no variance for the test. Then it is the probability to see no task
    with a difference of `reach`, if such tasks were frequent enough to change the mean by the margin.
    """
    if len(differences) < 2:
        return None
    if max(differences) == min(differences):
        if abs(differences[0]) >= margin:
            return 1.0
        return max(0.0, 1 - margin / reach) ** len(differences)
    from scipy.special import stdtr

    center, error, degrees = _mean_with_error(differences)
    return max(
        float(stdtr(degrees, -(center + margin) / error)),
        float(stdtr(degrees, (center - margin) / error)),
    )


def _reach(rewards: Sequence[float]) -> float:
    """Range of the observed rewards; 1 if all are equal."""
    reach = max(rewards) - min(rewards)
    if is_rounding(reach, rewards):
        return 1.0
    return reach


def _smallest(num_tasks: int, spread: float) -> float | None:
    if spread == 0:
        return None
    from scipy.special import nctdtrinc

    shift = float(nctdtrinc(num_tasks - 1, 1 - POWER, student(num_tasks - 1)))
    return shift / math.sqrt(num_tasks) * spread


def _enough(differences: Sequence[float], margin: float, reach: float) -> int | None:
    if len(differences) < 2:
        return None
    if max(differences) == min(differences):
        return _enough_alike(differences[0], margin, reach)
    return _enough_tasks(stdev(differences), margin)


def _enough_tasks(spread: float, margin: float) -> int:
    few = 2
    many = 4
    while (_smallest(many, spread) or 0.0) > margin:
        few = many
        many = 2 * many
    while many - few > 1:
        middle = (few + many) // 2
        if (_smallest(middle, spread) or 0.0) > margin:
            few = middle
        else:
            many = middle
    return many


def _enough_alike(difference: float, margin: float, reach: float) -> int:
    """Number of tasks with the same difference at which the sign test, or the test of equivalence, is significant."""
    limit = math.log(1 - CONFIDENCE)
    if difference != 0:
        return 1 + math.ceil(limit / math.log(0.5))
    if margin < reach:
        return max(2, math.ceil(limit / math.log(1 - margin / reach)))
    return 2


def p_text(value: float | None) -> str:
    """Text of a p value, such as `p = 0.03`."""
    if value is None:
        return "-"
    if value < 0.001:
        return "< 0.001"
    return f"= {value:.3f}"
