"""`make equivalence`: its figures against scipy and statsmodels, its verdicts on data made by hand, its picture."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tools.benchmarks.curves import draw
from tools.benchmarks.equivalence import (
    Verdict,
    _parser,
    _sweeps,
    compared,
    comparisons,
    main,
    table,
)
from tools.benchmarks.sweeps import TrainedRun, rewards_of
from xp.composition import compose_sweep
from xp.errors import ExitCode, XpError
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


def test_both_one_sided_tests_agree_with_the_90_percent_interval() -> None:
    draws = np.random.default_rng(0).normal(0.01, 0.02, (100, 5)).tolist()
    found = [compared("reward", NAMES, pairs_of(one), 0.03) for one in draws]
    within = [one.interval is not None and max(map(abs, one.interval)) < 0.03 for one in found]
    assert [one.verdict is Verdict.EQUIVALENT for one in found] == within
    assert 10 < sum(within) < 90


@pytest.mark.parametrize(
    ("differences", "verdict"),
    [
        ([0.001, -0.002, 0.003, 0.0, -0.001], Verdict.EQUIVALENT),
        ([0.101, 0.098, 0.103, 0.1, 0.099], Verdict.DIFFERENT),
        ([-0.101, -0.098, -0.103, -0.1, -0.099], Verdict.DIFFERENT),
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


def test_one_seed_has_no_spread() -> None:
    runs = {name: [run_of(1, (0.2, 0.4), 0.9)] for name in NAMES}
    found = comparisons(runs, 0.03)
    assert [one.verdict for one in found] == [Verdict.UNDECIDED] * 2
    assert "| trl | mean, sd | 0.400, - | 0.900, - | 0.300, - |" in table(runs, found)


def test_runs_of_one_name_are_one_curve_with_a_band(tmp_path: Path) -> None:
    draw(
        tmp_path / "curves.png",
        {"trl, mean of 2 seeds": [(0.1, 0.5), (0.3, 0.6, 0.7)], "one run": [(0.2, 0.2)]},
    )
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_a_step_without_a_reward_is_not_counted_as_zero(tmp_path: Path) -> None:
    lines = [
        {"stage": "train", "step": 1, "reward/avg_raw_reward": 0.5},
        {"stage": "train", "step": 2},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(XpError, match="not every step"):
        rewards_of(tmp_path)


def test_where_a_run_is_missing_nothing_is_concluded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--read-only", "--seeds", "1,2", "--outputs", str(tmp_path)]) == ExitCode.RUN_DIR
    assert "no finished run of" in capsys.readouterr().err


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
