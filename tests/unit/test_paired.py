"""The paired comparison's figures, which scipy.special gives in a tenth of a second, against those of statsmodels."""

from __future__ import annotations

import numpy as np
import pytest

from xp.evaluation.paired import _enough_tasks, _equivalence, _interval, _passes, _smallest
from xp.evaluation.ranking import ComparedSpec, _over_seeds, _welch


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

    pairs = [((1.0,), (0.0,))] * first + [((0.0,), (1.0,))] * second + [((1.0,), (1.0,))] * 3
    found = _passes(pairs, 1.0)
    assert (found.both, found.only_first, found.only_second, found.neither) == (3, first, second, 0)
    assert found.p_value == pytest.approx(mcnemar([[3, first], [second, 0]], exact=True).pvalue)


def test_without_a_task_on_which_they_differ_nothing_is_shown() -> None:
    assert _passes([((1.0,), (1.0,))] * 4, 1.0).p_value == 1.0


def test_intervals_over_seeds_are_students_and_welchs() -> None:
    from scipy.stats import ttest_1samp, ttest_ind

    first, second = (ComparedSpec(name, (), rewards) for name, rewards in (("a", (0.3, 0.5, 0.45)), ("b", (0.1, 0.2))))
    welch = ttest_ind(first.rewards, second.rewards, equal_var=False).confidence_interval(0.95)
    assert _welch(first, second)[0] == pytest.approx((welch.low, welch.high))
    own = ttest_1samp(first.rewards, 0.0).confidence_interval(0.95)
    assert _over_seeds(first) == f"95 % {own.low:.3f} to {own.high:.3f} over seeds"
