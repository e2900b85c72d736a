"""Figures of an evaluation: held against other people's code, and against simulations whose truth is known."""

from __future__ import annotations

import itertools
import json
from statistics import fmean, stdev

import numpy as np
import pytest

from tests.support.episode_facts import played
from tests.support.sections import replace
from xp.episode.clusters import clustered_stderr, reward_limits
from xp.episode.evaluation import figures, rewards_of
from xp.errors import XpError
from xp.results.evaluation.paired import compare
from xp.results.evaluation.statistics import (
    Estimate,
    mean,
    mix_of,
    pass_at_k,
    pass_hat_k,
    share,
    summarize,
)

TASKS = 40
SAMPLES = 8
DRAWS = 2000
ALPHA = 0.6
BETA = 0.4
TRUTH = ALPHA / (ALPHA + BETA)


def draws(num: int) -> np.ndarray:
    """Evaluations of tasks of very different difficulty: draws x tasks x episodes of zeros and ones."""
    rng = np.random.default_rng(22)
    difficulty = rng.beta(ALPHA, BETA, size=(num, TASKS, 1))
    return (rng.random((num, TASKS, SAMPLES)) < difficulty).astype(float)


def test_the_standard_error_is_that_of_statsmodels_clustered_regression() -> None:
    from statsmodels.regression.linear_model import OLS

    rng = np.random.default_rng(1)
    tasks = [list(rng.normal(rng.normal(), 1, size=rng.integers(1, 6))) for _ in range(30)]
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


def test_the_95_percent_interval_covers_and_the_naive_does_not() -> None:
    hits = naive_hits = 0
    for draw in draws(DRAWS).tolist():
        found = mean(draw)
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        hits += found.low <= TRUTH <= found.high
        episodes = list(itertools.chain(*draw))
        reach = 1.96 * stdev(episodes) / len(episodes) ** 0.5
        naive_hits += abs(fmean(episodes) - TRUTH) <= reach
    assert 0.93 <= hits / DRAWS <= 0.97
    assert naive_hits / DRAWS < 0.75


def test_a_bootstrap_that_tells_something_else_is_marked() -> None:
    skewed = {f"t{number}": [0.0] for number in range(19)} | {"rare": [20.0]}
    even = {f"t{number}": [float(number % 2)] for number in range(40)}
    assert summarize(skewed, 1.0).bootstrap_differs
    assert not summarize(even, 1.0).bootstrap_differs
    # There is nothing to differ from: every episode is void, there is one task, or all tasks have the same mean.
    for several in ({"a": [None]}, {"a": [0.0, 1.0]}, {"a": [1.0], "b": [1.0]}):
        assert not summarize(several, 1.0).bootstrap_differs


@pytest.mark.parametrize(
    ("bounds", "differs"),
    # The width is 0.5, of which a fifth is 0.1.
    [
        ((0.25, 0.75), False),
        ((0.34, 0.84), False),
        ((0.36, 0.75), True),
        ((0.25, 0.64), True),
        ((0.14, 0.7), True),
    ],
)
def test_a_bootstrap_differs_by_a_fifth_of_the_width(
    bounds: tuple[float, float], differs: bool
) -> None:
    summary = summarize({"a": [0.0], "b": [1.0]}, 1.0)
    estimate = Estimate(0.5, 0.1, 0.25, 0.75, "t", 2)
    assert replace(summary, reward=estimate, bootstrap=bounds).bootstrap_differs is differs
    assert not replace(summary, reward=estimate, bootstrap=None).bootstrap_differs
    assert not replace(summary, reward=None, bootstrap=bounds).bootstrap_differs


def test_pass_at_k_is_the_share_of_choices_with_a_pass() -> None:
    episodes = [True, True, False, False, False, False]
    for k in range(1, 7):
        choices = list(itertools.combinations(episodes, k))
        assert pass_at_k(6, 2, k) == pytest.approx(fmean(float(any(one)) for one in choices))
        assert pass_hat_k(6, 2, k) == pytest.approx(fmean(float(all(one)) for one in choices))


def test_a_summary_has_every_figure_and_void_episodes_in_none() -> None:
    summary = summarize({"a": [1.0, 0.0, None], "b": [1.0, 1.0, 1.0], "c": [None, None, None]}, 1.0)
    assert summary.num_tasks == 3
    assert summary.num_episodes == 9
    assert summary.num_void == 4
    assert summary.reward is not None
    assert summary.avg_at_k is not None
    assert summary.reward.value == pytest.approx(4 / 5)
    assert summary.avg_at_k.value == pytest.approx((0.5 + 1.0) / 2)
    assert {k: one.num_tasks for k, one in summary.pass_at_k.items()} == {"1": 2, "2": 2, "3": 1}
    assert summary.void_bounds is not None
    assert (summary.void_bounds.low, summary.void_bounds.high) == pytest.approx((4 / 9, 8 / 9))
    assert summary.void_bounds.of == "observed"
    assert summarize({"a": [0.5, None]}, 1.0, (-1.0, 1.0)).void_bounds.low == pytest.approx(-0.25)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("tasks", "method", "stderr", "bounds"),
    [
        ([[1.0]], "t", None, (None, None)),
        ([[1.0], [1.0, 1.0]], "exact", 0.0, (0.025**0.5, 1.0)),
        ([[0.0], [], [0.0]], "exact", 0.0, (0.0, 1 - 0.025**0.5)),
        ([[1.0]] * 20, "exact", 0.0, (0.025 ** (1 / 20), 1.0)),
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
    assert (estimate.method, estimate.stderr, estimate.num_tasks) == (
        method,
        stderr,
        sum(map(bool, tasks)),
    )
    assert [estimate.low, estimate.high] == [
        one if one is None else pytest.approx(one) for one in bounds
    ]
    assert share([[]]) is None


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-0.5, 2.0)])
def test_an_interval_ends_where_the_rewards_do(low: float, high: float) -> None:
    tasks = {f"t{number}": [low if number else high] for number in range(10)}
    other = {name: [low + high - reward[0]] for name, reward in tasks.items()}
    for several, side in ((tasks, 0), (other, 1)):
        summary = summarize(several, high, (low, high))
        assert summary.reward is not None
        assert summary.passes is not None
        assert summary.avg_at_k is not None
        assert (summary.reward.low, summary.reward.high)[side] == (low, high)[side]
        assert (summary.avg_at_k.low, summary.avg_at_k.high)[side] == (low, high)[side]
        assert (summary.passes.low, summary.passes.high)[side] == (0.0, 1.0)[side]


def test_one_task_says_nothing_about_others() -> None:
    found = mean([[0.0, 1.0, 1.0]])
    assert found is not None
    assert found.stderr is None
    assert found.low is None
    summary = summarize({"a": [0.0, 1.0, 1.0]}, 1.0)
    assert summary.reward == summary.avg_at_k == found


def test_a_mix_is_the_weighted_mean_of_strata() -> None:
    from scipy import stats

    first = (0.0, 1.0, 1.0, 0.0)
    second = (0.2, 0.4, 0.3, 0.1, 0.9, 0.35, 0.3)
    parts = [mean([[value] for value in values]) for values in (first, second)]
    found = mix_of(parts, [1, 3])
    assert found.value == pytest.approx(0.25 * fmean(first) + 0.75 * fmean(second))
    # Welch's test of a quarter of one against minus three quarters of the other has the same error and freedom.
    welch = stats.ttest_ind(
        [one / 4 for one in first], [-3 * one / 4 for one in second], equal_var=False
    )
    assert (found.low, found.high) == pytest.approx(tuple(welch.confidence_interval(0.95)))
    assert found.stderr == pytest.approx(found.value / welch.statistic)
    assert found.num_tasks == 11
    alone = mean([[1.0, 0.0]])
    assert alone is not None
    assert mix_of([*parts, alone], [1, 3, 1]).low is None


def test_the_evaluate_stage_clusters_by_task_and_keeps_each_tasks_rewards() -> None:
    episodes = [
        played("t", 1.0),
        played("u", 0.0),
        played("t", 1.0),
        played("u", None),
    ]
    assert rewards_of(episodes) == {"t": [1.0, 1.0], "u": [0.0, None]}
    result = figures(episodes, 1.0)
    assert result["num_tasks"] == 2
    assert result["reward"]["stderr"] == clustered_stderr([[1.0, 1.0], [0.0]])
    json.dumps(result, allow_nan=False)


def rewards(values: np.ndarray) -> dict[str, list[float | None]]:
    return {f"t{number}": [float(value)] for number, value in enumerate(values)}


def test_exactly_enough_tasks_are_enough_and_one_less_is_not() -> None:
    for number, is_shown in ((98, False), (99, True)):
        same = {f"t{at}": [float(at % 2)] for at in range(number)}
        assert ("are equivalent" in compare(("a", "b"), same, same, 1.0, 0.03).verdict) is is_shown
    for number, told in (
        (5, "all 5 tasks differ alike, and 6 such tasks would show it"),
        (6, "b is better than a"),
    ):
        first, second = ({f"t{at}": [reward] for at in range(number)} for reward in (0.0, 0.5))
        assert told in compare(("a", "b"), first, second, 1.0, 0.03).verdict


def test_other_tasks_are_refused_with_their_names() -> None:
    with pytest.raises(XpError, match=r"only in b: u") as caught:
        compare(
            ("a", "b"),
            {"t": [1.0]},
            {"t": [1.0], "u": [0.0]},
            1.0,
            0.03,
        )
    assert "only in a" not in str(caught.value)


@pytest.mark.parametrize(
    ("rewards", "rule", "limits"),
    [
        ([0.0, 1.0, None], (None, None), (0.0, 1.0)),
        ([0.5, 1.01], (None, None), (None, None)),
        ([-0.01, 1.0], (None, None), (None, None)),
        ([None], (None, None), (None, None)),
        ([2.0], (0.0, None), (0.0, None)),
        ([0.5], (-1.0, None), (-1.0, 1.0)),
    ],
)
def test_rewards_within_0_and_1_and_those_of_a_rule_have_limits(
    rewards: list[float | None],
    rule: tuple[float | None, float | None],
    limits: tuple[float | None, float | None],
) -> None:
    assert reward_limits(rewards, rule) == limits
