"""Figures of an evaluation: held against other people's code, and against simulations whose truth is known."""

from __future__ import annotations

import itertools
from statistics import fmean

import numpy as np
import pytest

from xp.episode.clusters import reward_limits
from xp.episode.evaluation import Estimate
from xp.results.evaluation.statistics import (
    mean,
    mix_of,
    pass_at_k,
    pass_hat_k,
    share,
    summarize,
)


def test_the_standard_error_is_that_of_statsmodels_clustered_regression() -> None:
    from statsmodels.regression.linear_model import OLS

    rng = np.random.default_rng(1)
    tasks = [
        list(
            rng.normal(
                rng.normal(),
                1,
                size=rng.integers(1, 6),
            )
        )
        for _ in range(30)
    ]
    groups = [number for number, task in enumerate(tasks) for _ in task]
    values = np.array([one for task in tasks for one in task])
    fit = OLS(values, np.ones_like(values)).fit(
        cov_type="cluster", cov_kwds={"groups": np.array(groups)}, use_t=True
    )
    found = mean(tasks)
    assert found is not None
    assert found.value == pytest.approx(fit.params[0])
    assert found.stderr == pytest.approx(fit.bse[0])
    assert (found.low, found.high) == pytest.approx(tuple(fit.conf_int()[0]))


def test_a_bootstrap_that_tells_something_else_is_marked() -> None:
    skewed = {f"t{number}": [0.0] for number in range(19)} | {"rare": [20.0]}
    even = {f"t{number}": [float(number % 2)] for number in range(40)}
    assert summarize(skewed, 1.0).bootstrap_differs
    assert not summarize(even, 1.0).bootstrap_differs
    # There is nothing to differ from: every episode is void, there is one task, or all tasks have the same mean.
    for several in ({"a": [None]}, {"a": [0.0, 1.0]}, {"a": [1.0], "b": [1.0]}):
        assert not summarize(several, 1.0).bootstrap_differs


@pytest.mark.parametrize("k", range(1, 7))
def test_pass_at_k_is_the_share_of_choices_with_a_pass(k: int) -> None:
    choices = list(itertools.combinations([True, True, False, False, False, False], k))
    assert pass_at_k(6, 2, k) == pytest.approx(fmean(map(any, choices)))
    assert pass_hat_k(6, 2, k) == pytest.approx(fmean(map(all, choices)))


def test_a_summary_has_every_figure_and_void_episodes_in_none() -> None:
    summary = summarize(
        {
            "a": [1.0, 0.0, None],
            "b": [1.0, 1.0, 1.0],
            "c": [None, None, None],
        },
        1.0,
    )
    assert (summary.num_tasks, summary.num_episodes, summary.num_void) == (3, 9, 4)
    assert summary.reward is not None
    assert summary.avg_at_k is not None
    assert (summary.reward.value, summary.avg_at_k.value) == pytest.approx((4 / 5, 1.5 / 2))
    assert {k: one.num_tasks for k, one in summary.pass_at_k.items()} == {
        "1": 2,
        "2": 2,
        "3": 1,
    }
    bounds = summary.void_bounds
    assert bounds is not None
    assert (bounds.low, bounds.high, bounds.of) == (4 / 9, 8 / 9, "observed")
    wide = summarize({"a": [0.5, None]}, 1.0, (-1.0, 1.0)).void_bounds
    assert wide is not None
    assert wide.low == -0.25


@pytest.mark.parametrize(
    ("tasks", "method", "stderr", "bounds"),
    [
        ([[1.0]], "t", None, (None, None)),
        ([[1.0], [1.0, 1.0]], "exact", 0.0, (0.025**0.5, 1.0)),
        ([[0.0], [], [0.0]], "exact", 0.0, (0.0, 1 - 0.025**0.5)),
        ([[0.0, 1.0], [1.0, 0.0]], "t", 0.0, (None, None)),
        ([[0.0], [1.0]], "t", 0.5, (0.0, 1.0)),
    ],
)
def test_a_share_of_few_tasks(
    tasks: list[list[float]],
    method: str,
    stderr: float | None,
    bounds: tuple[float | None, float | None],
) -> None:
    estimate = share(tasks)
    assert estimate is not None
    assert (estimate.method, estimate.stderr) == (method, stderr)
    assert [estimate.low, estimate.high] == pytest.approx([*bounds])
    assert share([[]]) is None


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-0.5, 2.0)])
def test_an_interval_ends_where_the_rewards_do(low: float, high: float) -> None:
    rewards = [high] + [low] * 9
    small = summarize(
        {f"t{at}": [one] for at, one in enumerate(rewards)},
        high,
        (low, high),
    )
    large = summarize(
        {f"t{at}": [low + high - one] for at, one in enumerate(rewards)}, high, (low, high)
    )
    for estimate, end in ((small.reward, low), (small.avg_at_k, low), (small.passes, 0.0)):
        assert estimate is not None
        assert estimate.low == end
    for estimate, end in ((large.reward, high), (large.avg_at_k, high), (large.passes, 1.0)):
        assert estimate is not None
        assert estimate.high == end


def test_a_mix_is_the_weighted_mean_of_strata() -> None:
    from scipy import stats

    first = np.array([0.0, 1.0, 1.0, 0.0])
    second = np.array([0.2, 0.4, 0.3, 0.1, 0.9, 0.35, 0.3])
    parts = [mean([[value] for value in values.tolist()]) for values in (first, second)]
    found = mix_of(parts, [1, 3])
    assert found.value == pytest.approx(0.25 * first.mean() + 0.75 * second.mean())
    # Welch's test of a quarter of one against minus three quarters of the other has the same error and freedom.
    welch = stats.ttest_ind(first / 4, -3 * second / 4, equal_var=False)
    assert (found.low, found.high) == pytest.approx(tuple(welch.confidence_interval(0.95)))
    assert found.stderr == pytest.approx(found.value / welch.statistic)
    assert found.num_tasks == 11
    assert mix_of([*parts, mean([[1.0, 0.0]])], [1, 3, 1]).low is None


@pytest.mark.parametrize(
    ("rewards", "rule", "limits"),
    [
        ([0.0, 1.0, None], (None, None), (0.0, 1.0)),
        ([0.5, 1.01], (None, None), (None, None)),
        ([-0.01, 1.0], (None, None), (None, None)),
        ([None], (None, None), (None, None)),
        ([0.5], (-1.0, None), (-1.0, 1.0)),
    ],
)
def test_rewards_within_0_and_1_and_those_of_a_rule_have_limits(
    rewards: list[float | None],
    rule: tuple[float | None, float | None],
    limits: tuple[float | None, float | None],
) -> None:
    assert reward_limits(rewards, rule) == limits


@pytest.mark.parametrize(
    ("bounds", "differs"),
    # The width is 0.5, of which a fifth is 0.1.
    [((0.34, 0.84), False), ((0.36, 0.75), True), ((0.25, 0.64), True), (None, False)],
)
def test_a_bootstrap_differs_by_a_fifth_of_the_width(
    bounds: tuple[float, float] | None, differs: bool
) -> None:
    summary = summarize({"a": [0.0], "b": [1.0]}, 1.0)
    estimate = Estimate(value=0.5, stderr=0.1, low=0.25, high=0.75, num_tasks=2)
    summary = summary.model_copy(update={"reward": estimate, "bootstrap": bounds})
    assert summary.bootstrap_differs is differs
