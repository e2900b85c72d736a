"""The paired comparison's figures, which scipy.special gives in a tenth of a second, against those of statsmodels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest

from xp.episode.clusters import clustered_stderr
from xp.evaluation.paired import _enough_tasks, _equivalence, _interval, _passes, _smallest, compare
from xp.evaluation.ranking import Setting, _over_seeds, _paired
from xp.evaluation.statistics import mean


@pytest.mark.parametrize("number", [2, 3, 10, 100, 5000])
def test_interval_tests_and_power_are_those_of_scipy_and_statsmodels(number: int) -> None:
    from scipy.stats import ttest_1samp
    from statsmodels.stats.power import TTestPower
    from statsmodels.stats.weightstats import DescrStatsW

    drawn = np.random.default_rng(number).normal(0.1, 0.5, number)
    differences, spread = drawn.tolist(), float(drawn.std(ddof=1))
    test = ttest_1samp(differences, 0.0)
    interval = test.confidence_interval(0.95)
    assert _interval(differences) == pytest.approx((interval.low, interval.high, test.pvalue))
    assert _equivalence(differences, 0.3, 1.0) == pytest.approx(DescrStatsW(differences).ttost_mean(-0.3, 0.3)[0])
    power = TTestPower()
    expected = float(power.solve_power(nobs=number, alpha=0.05, power=0.8)) * spread
    assert _smallest(number, spread) == pytest.approx(expected, rel=1e-4)
    enough = float(power.solve_power(effect_size=0.03 / spread, alpha=0.05, power=0.8))
    assert _enough_tasks(spread, 0.03) == pytest.approx(enough, abs=1)


@pytest.mark.parametrize(("first", "second"), [(3, 5), (10, 1), (7, 7), (0, 4)])
def test_the_exact_test_of_passes_is_mcnemars(first: int, second: int) -> None:
    from statsmodels.stats.contingency_tables import mcnemar

    # The first episode of a task counts, whatever the others are.
    pairs = [((1.0, 0.0), (0.0, 1.0))] * first + [((0.0, 1.0), (1.0, 0.0))] * second + [((1.0,), (1.0, 0.0))] * 3
    found = _passes(pairs, 1.0)
    assert (found.both, found.only_first, found.only_second, found.neither) == (3, first, second, 0)
    assert found.p_value == pytest.approx(mcnemar([[3, first], [second, 0]], exact=True).pvalue)


def setting(label: str, rewards: Sequence[float]) -> Setting:
    return Setting(label, (), {seed: [reward] for seed, reward in enumerate(rewards)})


def test_an_interval_over_seeds_is_students() -> None:
    from scipy.stats import ttest_1samp

    own = ttest_1samp((0.3, 0.5, 0.45), 0.0).confidence_interval(0.95)
    assert (
        _over_seeds(setting("a", (0.3, 0.5, 0.45)), (None, None)) == f"95 % {own.low:.3f} to {own.high:.3f} over seeds"
    )
    assert _over_seeds(setting("a", (0.9, 1.0)), (0.0, 1.0)).endswith("to 1.000 over seeds")


def test_settings_are_compared_by_the_paired_test_over_common_seeds() -> None:
    from scipy.stats import ttest_rel

    first, second = setting("a", (0.3, 0.5, 0.45, 0.9)), setting("b", (0.2, 0.45, 0.3))
    found = _paired(Path(), second, first)
    expected = ttest_rel((0.3, 0.5, 0.45), (0.2, 0.45, 0.3))
    interval = expected.confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))
    assert found.p_value == pytest.approx(expected.pvalue)
    assert (found.num_tasks, found.unit) == (3, "seed")


THIRDS = {
    "a": ([0.0, 0.0, 1.0], [0.0, 1.0, 1.0]),
    "b": ([0.1, 0.1, 0.1], [0.1, 0.1, 1.1]),
    "c": ([0.7] * 3, [1.7, 0.7, 0.7]),
}
"""Task -> rewards of two models, whose means differ by 1/3 in each task, but for rounding."""


@pytest.mark.parametrize(("scale", "sign"), [(1.0, 1), (1.0, -1), (1e6, 1)])
def test_differences_that_are_equal_but_for_rounding_are_no_spread(scale: float, sign: int) -> None:
    sides = [{task: [scale * one for one in pair[side]] for task, pair in THIRDS.items()} for side in (0, 1)]
    first, second = sides[::sign]
    assert len({fmean(second[task]) - fmean(first[task]) for task in THIRDS}) > 1
    found = compare(("a", "b"), first, second, 1.0, 0.03)
    assert found.difference == pytest.approx(sign * scale / 3)
    assert (found.low, found.high, found.smallest, found.stderr) == (None, None, None, 0.0)
    assert (found.p_value, found.enough_tasks) == (0.25, 6)
    assert "all 3 tasks differ alike, and 6 such tasks would show it" in found.verdict


def test_differences_that_are_rounding_alone_are_no_difference() -> None:
    first = {"a": [0.1 + 0.2], "b": [0.3], "c": [0.6]}
    second = {"a": [0.3], "b": [0.1 + 0.2], "c": [0.6]}
    found = compare(("a", "b"), first, second, 1.0, 0.03)
    assert (found.difference, found.p_value, found.p_equivalent) == (0.0, 1.0, pytest.approx(0.9**3))
    assert "all 3 tasks have the same reward in both" in found.verdict


def test_a_standard_error_that_is_rounding_alone_is_0() -> None:
    tenths = [[0.1 + 0.2], [0.3], [0.3, 0.3]]
    assert clustered_stderr(tenths) == 0.0
    assert clustered_stderr([[1e6 * one for one in task] for task in tenths]) == 0.0
    found = mean(tenths)
    assert found is not None
    assert (found.low, found.high) == (None, None)
