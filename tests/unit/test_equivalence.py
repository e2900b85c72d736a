"""`make equivalence`: its figures against scipy and statsmodels, its verdicts on data made by hand, its picture."""

from __future__ import annotations

import numpy as np
import pytest

from tools.benchmarks.equivalence import (
    Verdict,
    compared,
    comparisons,
    table,
)
from tools.benchmarks.sweeps import TrainedRun
from xp.execution.held_out import HeldOutResult

NAMES = ("trl", "skyrl")


def pairs_of(differences: list[float]) -> dict[int, tuple[float, float]]:
    """Seeds whose first value varies more than the differences do."""
    return {
        seed: (0.5 + seed / 20, 0.5 + seed / 20 + one)
        for seed, one in enumerate(differences, start=1)
    }


def run_of(seed: int, rewards: tuple[float, ...], after: float) -> TrainedRun:
    before, trained = (
        HeldOutResult(value, 0.01, 512, 0, value, 1.0, 512) for value in (0.4, after)
    )
    return TrainedRun(f"run-{seed}", seed, rewards, before, trained)


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


def test_the_area_is_the_mean_of_the_steps() -> None:
    runs = {
        "trl": [run_of(1, (0.2, 0.4, 0.6), 0.9), run_of(2, (0.2, 0.4, 0.9), 0.94)],
        "skyrl": [run_of(1, (0.3, 0.5, 0.7), 0.88), run_of(2, (0.3, 0.4, 0.8), 0.95)],
    }
    found = comparisons(runs, 0.03)
    assert found[0].difference == pytest.approx(0.05)  # 0.1 and 0.0
    assert found[1].difference == pytest.approx(-0.005)  # -0.02 and 0.01
    text = table(runs, found)
    assert "| trl | 1 | 0.400 ± 0.010 | 0.900 ± 0.010 | 0.400 |" in text
    assert "| skyrl | mean, sd | 0.400, 0.000 | 0.915, 0.049 | 0.500, 0.000 |" in text
