"""A search: Optuna proposes, xp composes and runs; faults are told before the first run."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from xp.composition import compose
from xp.composition.points import Point, compose_sweep
from xp.composition.search import DATABASE, search
from xp.errors import ExitCode, XpError
from xp.spec import RunSpec

pytestmark = pytest.mark.timeout(1500)

RANGES = ["training.learning_rate=tag(log,interval(1e-4,1e-3))", "training.group_size=choice(4,8)"]


def test_trials_stay_within_the_ranges_and_the_best_is_written_down(tmp_path: Path) -> None:
    seen: list[RunSpec] = []

    def objective(point: Point) -> float:
        seen.append(point.spec)
        return -abs(point.spec.training.learning_rate - 5e-4)

    search([*RANGES, "recipes=quickstart", "seed=3"], [], tmp_path, 5, objective)
    assert len(seen) == 5
    assert all(
        1e-4 <= spec.training.learning_rate <= 1e-3 and spec.training.group_size in (4, 8)
        for spec in seen
    )
    assert all(spec.seed == 3 and spec.name == "quickstart" for spec in seen)
    best = yaml.safe_load((tmp_path / "optimization_results.yaml").read_text())
    assert best["best_value"] == max(-abs(spec.training.learning_rate - 5e-4) for spec in seen)
    assert {path.name for path in tmp_path.iterdir()} == {DATABASE, "optimization_results.yaml"}


def test_a_repeated_search_goes_on_with_what_was_learned(tmp_path: Path) -> None:
    import optuna

    for _ in range(2):
        search(RANGES, [], tmp_path, 2, lambda point: point.spec.training.learning_rate)
    study = optuna.load_study(study_name="search", storage=f"sqlite:///{tmp_path / DATABASE}")
    assert len(study.trials) == 4


def test_a_run_that_fails_ends_the_search_with_its_own_message(tmp_path: Path) -> None:
    def objective(_: Point) -> float:
        raise XpError("the environment is failing")

    with pytest.raises(XpError, match="the environment is failing"):
        search(RANGES, [], tmp_path, 3, objective)


@pytest.mark.parametrize(
    ("written", "drawn"),
    [
        ("range(1,4)", {1, 2, 3}),
        ("range(1,6,2)", {1, 3, 5}),
        ("range(3,1,-1)", {2, 3}),
        ("range(2,3)", {2}),
    ],
)
def test_a_range_has_the_values_that_it_has_in_a_sweep(
    written: str, drawn: set[int], tmp_path: Path
) -> None:
    assert {point.spec.seed for point in compose_sweep([f"seed={written}"])} == drawn
    seen: set[int] = set()

    def objective(point: Point) -> float:
        seen.add(point.spec.seed)
        return float(point.spec.seed)

    search([f"seed={written}"], [], tmp_path, 12, objective)
    assert seen == drawn


def test_a_range_of_fractions_is_without_its_upper_bound(tmp_path: Path) -> None:
    seen: set[float] = set()

    def objective(point: Point) -> float:
        seen.add(round(point.spec.training.temperature, 3))
        return 0.0

    words = ["training.temperature=range(0.8,1.1,0.1)"]
    search(words, [], tmp_path, 12, objective)
    assert seen == {0.8, 0.9, 1.0}
    with pytest.raises(XpError, match="it has no value"):
        search(["seed=range(4,1)"], [], tmp_path, 1, objective)


def test_the_last_value_of_a_range_is_checked_since_optuna_draws_it(tmp_path: Path) -> None:
    with pytest.raises(XpError, match="seed"):
        search([f"seed=range({2**31 - 3},{2**31 + 1})"], [], tmp_path / "search", 1, lambda _: 0.0)
    search([f"seed=range({2**31 - 3},{2**31})"], [], tmp_path, 1, lambda _: 0.0)


def test_a_database_that_cannot_be_read_is_an_error_of_resources(tmp_path: Path) -> None:
    (tmp_path / DATABASE).write_text("no database" * 100)
    with pytest.raises(XpError, match=f"{DATABASE}: file is not a database") as caught:
        search(RANGES, [], tmp_path, 1, lambda _: 0.0)
    assert caught.value.code is ExitCode.RESOURCE


def test_a_reward_that_is_no_number_ends_the_search_with_its_trial(tmp_path: Path) -> None:
    with pytest.raises(XpError, match=r"the trial seed=\d has the reward nan"):
        search(["seed=choice(1,2)"], [], tmp_path, 2, lambda _: float("nan"))


def test_options_of_ones_own_are_searched_and_a_trial_may_compose(tmp_path: Path) -> None:
    place = tmp_path / "options/algorithm"
    place.mkdir(parents=True)
    for name in ("one", "two"):
        text = f"# Mine.\ndefaults:\n  - grpo\n  - _self_\n# Mine.\nname: {name}\n"
        (place / f"{name}.yaml").write_text(text)
    seen: set[str] = set()

    def objective(point: Point) -> float:
        seen.add(point.spec.algorithm.name)
        compose(["recipes=quickstart", "env=echo", "algorithm=rloo"])
        return 0.0

    words = ["algorithm=choice(one,two)", "env=choice(echo,multiply)"]
    search(words, [tmp_path / "options"], tmp_path / "search", 3, objective)
    assert seen
    assert seen <= {"one", "two"}
