"""`make equivalence`: its figures against scipy and statsmodels, its verdicts on data made by hand, its picture."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tools.benchmarks.equivalence import (
    Verdict,
    _parser,
    _sweeps,
    compared,
    comparisons,
    table,
)
from tools.benchmarks.sweeps import TrainedRun, rewards_of
from xp.composition import compose_sweep
from xp.errors import XpError
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
        "slime": [run_of(1, (0.1, 0.1, 0.1), 0.5), run_of(2, (0.1, 0.1, 0.1), 0.5)],
    }
    found = comparisons(runs, 0.03)
    assert [(one.first, one.second) for one in found[::2]] == [
        ("trl", "skyrl"),
        ("trl", "slime"),
        ("skyrl", "slime"),
    ]
    assert found[0].difference == pytest.approx(0.05)  # 0.1 and 0.0
    assert found[1].difference == pytest.approx(-0.005)  # -0.02 and 0.01
    text = table(runs, found)
    assert "| trl | 1 | 0.400 ± 0.010 | 0.900 ± 0.010 | 0.400 |" in text
    assert "| skyrl | mean, sd | 0.400, 0.000 | 0.915, 0.049 | 0.500, 0.000 |" in text


def test_a_step_without_a_reward_is_not_counted_as_zero(tmp_path: Path) -> None:
    lines = [
        {"stage": "train", "step": 1, "reward/avg_raw_reward": 0.5},
        {"stage": "train", "step": 2},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(XpError, match="not every step"):
        rewards_of(tmp_path)


def test_a_backend_is_compared_with_itself_under_other_settings() -> None:
    words = [
        "--backends",
        "trl",
        "--seeds",
        "1,2",
        "--against",
        "training.max_staleness=1 algorithm.importance_correction=token_truncate",
    ]
    sweeps = _sweeps(_parser().parse_args([*words, "backend.num_threads=1"]))
    assert list(sweeps) == ["trl", "trl training.max_staleness=1"]
    for words, staleness in zip(sweeps.values(), (0, 1), strict=True):
        specs = [point.spec for point in compose_sweep(words)]
        assert [spec.seed for spec in specs] == [1, 2]
        assert {spec.training.max_staleness for spec in specs} == {staleness}
        assert {spec.backend.num_threads for spec in specs} == {1}
