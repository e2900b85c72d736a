"""A search: Optuna's sweeper proposes, xp composes and runs; faults are told before the first run."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import yaml

from xp.compose.search import DATABASE, search
from xp.errors import XpError
from xp.spec import RunSpec

RANGES = ["training.learning_rate=tag(log,interval(1e-4,1e-3))", "training.group_size=choice(4,8)"]


def test_trials_stay_within_the_ranges_and_the_best_is_written_down(tmp_path: Path) -> None:
    seen: list[RunSpec] = []

    def objective(spec: RunSpec) -> float:
        seen.append(spec)
        return -abs(spec.training.learning_rate - 5e-4)

    search([*RANGES, "recipes=quickstart", "seed=3"], [], tmp_path, 5, objective)
    assert len(seen) == 5
    assert all(1e-4 <= spec.training.learning_rate <= 1e-3 and spec.training.group_size in (4, 8) for spec in seen)
    assert all(spec.seed == 3 and spec.name == "quickstart" for spec in seen)
    best = yaml.safe_load((tmp_path / "optimization_results.yaml").read_text())
    assert best["best_value"] == max(-abs(spec.training.learning_rate - 5e-4) for spec in seen)
    assert {path.name for path in tmp_path.iterdir()} == {DATABASE, "optimization_results.yaml"}


def test_a_repeated_search_goes_on_with_what_was_learned(tmp_path: Path) -> None:
    import optuna

    for _ in range(2):
        search(RANGES, [], tmp_path, 2, lambda spec: spec.training.learning_rate)
    study = optuna.load_study(study_name="search", storage=f"sqlite:///{tmp_path / DATABASE}")
    assert len(study.trials) == 4


def test_a_run_that_fails_ends_the_search_with_its_own_message(tmp_path: Path) -> None:
    def objective(_: RunSpec) -> float:
        raise XpError("the environment is failing")

    with pytest.raises(XpError, match="the environment is failing"):
        search(RANGES, [], tmp_path, 3, objective)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["seed=1"], "nothing to search"),
        (["training.learning_rat=interval(1e-4,1e-3)"], "learning_rate"),
        (["training.learning_rate=interval(-1,1)"], "training.learning_rate"),
    ],
)
def test_a_faulty_search_starts_no_run_and_leaves_no_file(tmp_path: Path, overrides: list[str], message: str) -> None:
    def objective(_: RunSpec) -> float:
        raise AssertionError("a run was started")

    with pytest.raises(XpError, match=message):
        search(overrides, [], tmp_path / "search", 3, objective)
    assert not (tmp_path / "search").exists()


def test_a_search_leaves_the_warnings_of_xp_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Hydra may silence every logger that is there."""
    logger, level = logging.getLogger("xp.envs.server_watch"), logging.getLogger().level

    def objective(_: RunSpec) -> float:
        logger.warning("the server has ended")
        return 0.0

    search(RANGES, [], tmp_path, 1, objective)
    assert "the server has ended" in caplog.text
    assert not logger.disabled
    assert logging.getLogger().level == level


@pytest.mark.parametrize("name", ["a?b", "it's", "100%"])
def test_a_path_that_the_searchs_settings_cannot_express_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(XpError, match="the path of a search takes no"):
        search(["seed=choice(1,2)"], [], tmp_path / name, 1, lambda _: 0.0)
    assert list(tmp_path.iterdir()) == []
