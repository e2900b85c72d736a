"""The paired comparison's figures, which scipy.special gives in a tenth of a second, against those of statsmodels."""

from __future__ import annotations

import json
from dataclasses import replace
from statistics import fmean

import numpy as np
import pytest

from tests.support.tables import rows
from xp.episode.clusters import clustered_stderr
from xp.errors import XpError
from xp.results.evaluation.paired import (
    _enough_alike,
    _enough_tasks,
    _equivalence,
    _interval,
    _passes,
    _smallest,
    compare,
    holm,
    verdict,
)
from xp.results.evaluation.statistics import mean


@pytest.mark.parametrize("number", [2, 10, 5000])
def test_interval_tests_and_power_are_those_of_scipy_and_statsmodels(number: int) -> None:
    from scipy.stats import ttest_1samp
    from statsmodels.stats.power import TTestPower
    from statsmodels.stats.weightstats import DescrStatsW

    drawn = np.random.default_rng(number).normal(0.1, 0.5, number)
    differences = drawn.tolist()
    spread = float(drawn.std(ddof=1))
    test = ttest_1samp(differences, 0.0)
    interval = test.confidence_interval(0.95)
    assert _interval(differences) == pytest.approx((interval.low, interval.high, test.pvalue))
    assert _equivalence(differences, 0.3, 1.0) == pytest.approx(
        DescrStatsW(differences).ttost_mean(-0.3, 0.3)[0]
    )
    power = TTestPower()
    expected = float(power.solve_power(nobs=number, alpha=0.05, power=0.8)) * spread
    assert _smallest(number, spread) == pytest.approx(expected, rel=1e-4)
    enough = float(power.solve_power(effect_size=0.03 / spread, alpha=0.05, power=0.8))
    assert _enough_tasks(spread, 0.03) == pytest.approx(enough, abs=1)


@pytest.mark.parametrize(
    ("difference", "margin", "reach", "number"),
    # 0.5**n for the first n below 0.05 with both signs, and (1 - margin / reach)**n.
    [
        (0.2, 0.03, 1.0, 6),
        (0.0, 0.03, 1.0, 99),
        (0.0, 0.06, 2.0, 99),
        (0.0, 1.0, 1.0, 2),
    ],
)
def test_enough_tasks_that_are_alike(
    difference: float, margin: float, reach: float, number: int
) -> None:
    assert _enough_alike(difference, margin, reach) == number


@pytest.mark.parametrize(("first", "second"), [(3, 5), (0, 4)])
def test_the_exact_test_of_passes_is_mcnemars(first: int, second: int) -> None:
    from statsmodels.stats.contingency_tables import mcnemar

    # The first episode of a task counts, whatever the others are.
    pairs = [((1.0, 0.0), (0.0, 1.0))] * first + [((0.0, 1.0), (1.0, 0.0))] * second
    passes = _passes([*pairs, *[((1.0,), (1.0, 0.0))] * 3], 1.0)
    assert (passes.both, passes.only_first, passes.only_second) == (3, first, second)
    assert passes.neither == 0
    expected = mcnemar([[3, first], [second, 0]], exact=True)
    assert passes.p_value == pytest.approx(expected.pvalue)


THIRDS = {
    "a": ([0.0, 0.0, 1.0], [0.0, 1.0, 1.0]),
    "b": ([0.1, 0.1, 0.1], [0.1, 0.1, 1.1]),
    "c": ([0.7] * 3, [1.7, 0.7, 0.7]),
}
"""Task -> rewards of two models, whose means differ by 1/3 in each task, but for rounding."""


@pytest.mark.parametrize(("scale", "sign"), [(1.0, -1), (1e6, 1)])
def test_differences_that_are_equal_but_for_rounding_are_no_spread(scale: float, sign: int) -> None:
    sides = [
        {task: [scale * reward for reward in pair[side]] for task, pair in THIRDS.items()}
        for side in (0, 1)
    ]
    first, second = sides[::sign]
    assert len({fmean(second[task]) - fmean(first[task]) for task in THIRDS}) > 1
    found = compare(("a", "b"), first, second, 1.0, 0.03)
    assert found.difference == pytest.approx(sign * scale / 3)
    assert (found.low, found.high, found.smallest) == (None,) * 3
    assert (found.stderr, found.p_value, found.enough_tasks) == (0.0, 0.25, 6)


def test_the_first_tasks_of_one_side_alone_are_named() -> None:
    first, second = ({name: [1.0] for name in names} for names in ("tdcba", "tgfe"))
    with pytest.raises(XpError) as caught:
        compare(("x", "y"), first, second, 1.0, 0.03)
    assert str(caught.value).splitlines()[1:3] == [
        "  only in x: a, b, c and 1 more",
        "  only in y: e, f, g",
    ]


@pytest.mark.parametrize("scale", [1.0, 1e6])
def test_a_standard_error_that_is_rounding_alone_is_0(scale: float) -> None:
    tasks = [
        [scale * (0.1 + 0.2)],
        [scale * 0.3],
        [scale * 0.3] * 2,
    ]
    assert clustered_stderr(tasks) == 0.0
    estimate = mean(tasks)
    assert estimate is not None
    assert estimate.low is estimate.high is None


def test_tasks_with_only_void_episodes_of_one_model_are_left_out() -> None:
    first = {
        "a": [0.0, 1.0],
        "b": [1.0, None],
        "void": [None],
        "d": [0.25],
    }
    second = {
        "a": [1.0, 1.0],
        "b": [1.0],
        "void": [1.0],
        "d": [0.5],
    }
    result = compare(("x", "y"), first, second, 1.0, 0.03)
    assert (result.num_tasks, result.num_left_out, result.unit) == (3, 1, "task")
    means = (result.mean_first, result.mean_second, result.difference)
    assert means == pytest.approx((1.75 / 3, 2.5 / 3, 1 / 4))
    # Differences 0.5, 0 and 0.25: mean and deviation are 0.25, and t with 2 degrees of freedom is 4.3027.
    assert result.stderr == pytest.approx(0.25 / 3**0.5)
    assert (result.low, result.high) == pytest.approx((-0.371, 0.871), abs=6e-4)
    with pytest.raises(XpError, match="x and y: no task has a scored episode of both"):
        compare(
            ("x", "y"),
            {"t": [None]},
            {"t": [1.0]},
            1.0,
            0.03,
        )


def test_a_difference_of_shares_is_at_most_1() -> None:
    low_side = {"a": [0.0], "b": [0.0]}
    high_side = {"a": [1.0], "b": [0.2]}
    rise = compare(("x", "y"), low_side, high_side, 1.0, 0.03)
    fall = compare(("x", "y"), high_side, low_side, 1.0, 0.03)
    # Mean 0.6, deviation 0.5657, and t with 1 degree of freedom is 12.706: 5.68 or more.
    low = 0.6 - 12.7062 * 0.4
    assert (rise.low, rise.high, fall.low, fall.high) == pytest.approx((-1, 1, -1, 1))
    wide = compare(
        ("x", "y"),
        low_side,
        {"a": [1.5], "b": [0.3]},
        1.0,
        0.03,
    )
    assert wide.low == pytest.approx(1.5 * low, abs=1e-3)
    assert rise.stderr == pytest.approx(0.4)


ONE = compare(
    ("a", "b"),
    {"t": [0.25]},
    {"t": [0.5]},
    1.0,
    0.03,
)
TWO = compare(
    ("a", "b"),
    {"t": [0.0], "u": [0.5]},
    {"t": [0.5], "u": [0.75]},
    1.0,
    0.03,
)


def test_one_task_has_a_difference_and_no_statistics() -> None:
    statistics = (ONE.stderr, ONE.low, ONE.high, ONE.p_value, ONE.smallest, ONE.p_equivalent)
    assert statistics == (None,) * 6
    assert ONE.verdict.endswith("1 task says nothing about others.")


@pytest.mark.parametrize(
    ("p_values", "adjusted"),
    # Holm (1979): the smallest of m times m, the next times m - 1, and never less than the one before.
    [
        ([0.01, 0.04, 0.03], [0.03, 0.06, 0.06]),
        ([0.01, None, 0.7], [0.02, None, 0.7]),
    ],
)
def test_holm_adjusts_the_comparisons_that_were_tested(
    p_values: list[float | None], adjusted: list[float | None]
) -> None:
    results = holm([replace(TWO, p_value=value, p_holm=value) for value in p_values])
    assert [result.p_holm for result in results] == pytest.approx(adjusted)


@pytest.mark.parametrize(("changes", "text"), rows("verdicts", ""))
def test_the_verdict_says_what_was_shown(changes: str, text: list[str]) -> None:
    result = replace(
        TWO,
        num_tasks=9,
        difference=0.2,
        low=0.1,
        high=0.3,
        p_value=0.01,
        p_holm=0.01,
        p_equivalent=0.9,
        enough_tasks=40,
    )
    assert [verdict(replace(result, **json.loads(changes)))] == text


def test_one_task_is_compared_without_an_interval() -> None:
    found = compare(("a", "b"), {"t": [0.0]}, {"t": [1.0]}, 1.0, 0.03)
    assert found.difference == 1.0
    assert (found.low, found.high, found.stderr) == (None,) * 3
