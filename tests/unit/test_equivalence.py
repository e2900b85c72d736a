"""`make equivalence`: its figures against scipy and statsmodels, its verdicts on data made by hand, its picture."""

from __future__ import annotations

import numpy as np
import pytest

from tools.benchmarks.equivalence import (
    Verdict,
    compared,
)

NAMES = ("trl", "skyrl")


def pairs_of(differences: list[float]) -> dict[int, tuple[float, float]]:
    """Seeds whose first value varies more than the differences do."""
    return {
        seed: (0.5 + seed / 20, 0.5 + seed / 20 + one)
        for seed, one in enumerate(differences, start=1)
    }


@pytest.mark.parametrize("number", [2, 5, 12])
def test_the_tests_and_the_interval_are_those_of_statsmodels_and_scipy(number: int) -> None:
    from scipy.stats import ttest_1samp
    from statsmodels.stats.weightstats import DescrStatsW

    differences = np.random.default_rng(number).normal(0.005, 0.02, number).tolist()
    found = compared("reward", NAMES, pairs_of(differences), 0.03)
    assert found.p_value == pytest.approx(DescrStatsW(differences).ttost_mean(-0.03, 0.03)[0])
    expected = ttest_1samp(differences, 0.0).confidence_interval(0.9)
    assert found.interval == pytest.approx((expected.low, expected.high))
    assert found.difference == pytest.approx(np.mean(differences))


@pytest.mark.parametrize(
    ("differences", "verdict"),
    [
        ([0.001, -0.002, 0.003, 0.0, -0.001], Verdict.EQUIVALENT),
        ([0.101, 0.098, 0.103, 0.1, 0.099], Verdict.DIFFERENT),
        ([0.01, -0.05, 0.06, 0.02, -0.03], Verdict.UNDECIDED),
        ([0.0], Verdict.UNDECIDED),
    ],
)
def test_each_verdict_is_given_where_it_belongs(differences: list[float], verdict: Verdict) -> None:
    found = compared("reward", NAMES, pairs_of(differences), 0.03)
    assert found.verdict is verdict
