"""Statistics with intervals, from the rewards of an evaluation; the samples are tasks, not episodes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Final

from xp.episode.clusters import Limits, clustered_stderr, reward_limits, within
from xp.episode.evaluation import Bounds, Estimate, Figures
from xp.execution.held_out import HeldOutResult

Rewards = Mapping[str, Sequence[float | None]]
"""Task -> the rewards of its episodes. None means void."""

CONFIDENCE: Final = 0.95
RESAMPLES: Final = 2000
EXACT: Final = "exact"


def summarize(
    rewards: Rewards,
    pass_threshold: float,
    limits: tuple[float | None, float | None] = (None, None),
) -> Figures:
    """All statistics of one environment.

    Args:
        rewards: rewards of all played episodes.
        pass_threshold: smallest reward that is a pass.
        limits: smallest and largest reward that the rule permits. None means no limit.
    """
    scored = [[reward for reward in task if reward is not None] for task in rewards.values()]
    scored = [task for task in scored if task]
    possible = reward_limits([reward for task in scored for reward in task], limits)
    passed = [[float(reward >= pass_threshold) for reward in task] for task in scored]
    return Figures(
        num_tasks=len(rewards),
        num_episodes=sum(map(len, rewards.values())),
        num_void=sum(reward is None for task in rewards.values() for reward in task),
        reward=bounded(mean(scored), possible),
        bootstrap=bootstrap(scored),
        passes=share(passed),
        pass_threshold=pass_threshold,
        avg_at_k=bounded(mean([[fmean(task)] for task in scored]), possible),
        pass_at_k=_over_k(passed, pass_at_k),
        pass_hat_k=_over_k(passed, pass_hat_k),
        void_bounds=_void_bounds(rewards, limits),
    )


def mean(tasks: Sequence[Sequence[float]]) -> Estimate | None:
    """Mean over episodes with Student's interval, clustered by task. None means that there are no episodes."""
    values = [reward for task in tasks for reward in task]
    if not values:
        return None
    num_tasks = sum(map(bool, tasks))
    value = fmean(values)
    stderr = clustered_stderr(tasks)
    if not stderr:  # one task, or all tasks have the same value
        return Estimate(value=value, stderr=stderr, num_tasks=num_tasks)
    low, high = interval(value, stderr, num_tasks)
    return Estimate(value=value, stderr=stderr, low=low, high=high, num_tasks=num_tasks)


def bounded(estimate: Estimate | None, limits: Limits) -> Estimate | None:
    """The estimate with its interval within the limits of the values."""
    if estimate is None or estimate.low is None or estimate.high is None:
        return estimate
    return estimate.model_copy(
        update={"low": within(estimate.low, limits), "high": within(estimate.high, limits)}
    )


def interval(
    value: float, stderr: float, num_tasks: int, confidence: float = CONFIDENCE
) -> tuple[float, float]:
    """Student's interval of a mean whose standard error is clustered by task."""
    reach = stderr * student(num_tasks - 1, confidence)
    return value - reach, value + reach


def interval_of(result: HeldOutResult) -> tuple[float | None, float | None]:
    """Bounds of the interval of a mean held-out reward. None means that there is one task, or that all rewards are
    equal."""
    if not result.reward_stderr or result.num_tasks < 2:
        return None, None
    low, high = interval(result.reward_mean, result.reward_stderr, result.num_tasks)
    return within(low, result.limits), within(high, result.limits)


def share(tasks: Sequence[Sequence[float]]) -> Estimate | None:
    """`mean` of zeros and ones, within 0 and 1; the exact interval if all are equal, since Student's is then a point.

    The exact interval counts each task as one episode, which makes it wider.
    """
    estimate = mean(tasks)
    if estimate is None or estimate.num_tasks < 2:
        return estimate
    if estimate.value in (0.0, 1.0):
        from scipy.special import betaincinv

        # Clopper and Pearson's interval for none or all: the other bound is the value itself.
        tail = (1 - CONFIDENCE) / 2
        number = estimate.num_tasks
        exact = {"stderr": 0.0, "low": estimate.value, "high": estimate.value, "method": EXACT}
        if estimate.value == 0.0:
            exact["high"] = float(betaincinv(1, number, 1 - tail))
        else:
            exact["low"] = float(betaincinv(number, 1, tail))
        return estimate.model_copy(update=exact)
    return bounded(estimate, (0.0, 1.0))


def bootstrap(tasks: Sequence[Sequence[float]]) -> tuple[float, float] | None:
    """Interval of the mean by resampling whole tasks (bias-corrected and accelerated). None means that all tasks are
    equal."""
    filled = [task for task in tasks if task]
    if len(filled) < 2 or not clustered_stderr(filled):
        return None
    import numpy as np
    from scipy.stats import bootstrap as resample  # the import takes over a second

    sums = np.array([sum(task) for task in filled])
    counts = np.array([float(len(task)) for task in filled])
    bounds = resample(
        (sums, counts),
        lambda sums, counts, axis: sums.sum(axis) / counts.sum(axis),
        paired=True,
        vectorized=True,
        n_resamples=RESAMPLES,
        confidence_level=CONFIDENCE,
        rng=np.random.default_rng(0),
    ).confidence_interval
    low = float(bounds.low)
    high = float(bounds.high)
    if math.isfinite(low) and math.isfinite(high):
        return low, high
    return None


def pass_at_k(num_episodes: int, num_passed: int, k: int) -> float:
    """Unbiased probability that at least one of k episodes passes: 1 - C(n - c, k) / C(n, k) (arXiv:2107.03374)."""
    return 1.0 - math.comb(num_episodes - num_passed, k) / math.comb(num_episodes, k)


def pass_hat_k(num_episodes: int, num_passed: int, k: int) -> float:
    """Unbiased probability that all of k episodes pass: C(c, k) / C(n, k) (arXiv:2406.12045)."""
    return math.comb(num_passed, k) / math.comb(num_episodes, k)


def mix_of(parts: Sequence[Estimate], weights: Sequence[float]) -> Estimate:
    """The weighted mean over environments as strata (Welch-Satterthwaite's degrees of freedom).

    Args:
        parts: one estimate per environment.
        weights: positive weights of any scale, one per environment.
    """
    total = sum(weights)
    weighted = [(weight / total, part) for weight, part in zip(weights, parts, strict=True)]
    value = sum(fraction * part.value for fraction, part in weighted)
    num_tasks = sum(part.num_tasks for part in parts)
    if any(part.stderr is None for part in parts):
        return Estimate(value=value, stderr=None, num_tasks=num_tasks)
    errors = [fraction * (part.stderr or 0.0) for fraction, part in weighted]
    variance = sum(error**2 for error in errors)
    if variance == 0:
        return Estimate(value=value, stderr=0.0, num_tasks=num_tasks)
    freedom = variance**2 / sum(
        error**4 / (part.num_tasks - 1) for error, part in zip(errors, parts, strict=True)
    )
    stderr = math.sqrt(variance)
    reach = stderr * student(freedom)
    return Estimate(
        value=value, stderr=stderr, low=value - reach, high=value + reach, num_tasks=num_tasks
    )


def _over_k(
    passed: Sequence[Sequence[float]], estimator: Callable[[int, int, int], float]
) -> dict[str, Estimate]:
    """Text of k, as a JSON object has it -> the estimate."""
    most = max(map(len, passed), default=0)
    powers = {2**power for power in range(most.bit_length())}
    estimates: dict[str, Estimate] = {}
    for k in sorted(powers | {most} - {0}):
        enough = [[estimator(len(task), round(sum(task)), k)] for task in passed if len(task) >= k]
        estimate = share(enough)
        assert estimate is not None  # the task with the most episodes has k
        estimates[str(k)] = estimate
    return estimates


def _void_bounds(rewards: Rewards, limits: tuple[float | None, float | None]) -> Bounds | None:
    everything = [reward for task in rewards.values() for reward in task]
    values = [reward for reward in everything if reward is not None]
    num_void = len(everything) - len(values)
    if not num_void or not values:
        return None
    lowest, highest = limits
    of = "observed" if None in limits else "rule"
    lowest = min(values) if lowest is None else lowest
    highest = max(values) if highest is None else highest
    total = math.fsum(values)
    count = len(everything)
    return Bounds(
        low=(total + num_void * lowest) / count, high=(total + num_void * highest) / count, of=of
    )


def student(freedom: float, confidence: float = CONFIDENCE) -> float:
    """Quantile of Student's t that bounds its central share `confidence`."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, 0.5 + confidence / 2))
