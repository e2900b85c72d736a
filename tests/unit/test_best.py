"""The best of a training's evaluations: what is kept, how long training waits for a better one, what is refused."""

from __future__ import annotations

from pathlib import Path

from tests.support.sections import PLACES, run_spec
from xp.episode.metrics_file import MetricsFile
from xp.worker.best import METRIC, STAGE, BestEvaluation, BestKeeper


def keeper(
    root: Path, patience: int | None = 2, attempt: int = 1
) -> tuple[BestKeeper, MetricsFile]:
    rule = run_spec(evaluation__keep_best=True, evaluation__patience=patience).evaluation
    (root / "runs/r").mkdir(parents=True, exist_ok=True)
    return BestKeeper(rule, PLACES, root), MetricsFile(root / PLACES.metrics, STAGE, attempt)


def evaluated(kept: BestKeeper, metrics: MetricsFile, step: int, reward: float) -> str | None:
    """Does the same as a backend after an evaluation; returns the reason why training stops."""
    metrics.write(step, {METRIC: reward})
    if not kept.is_better(reward):
        stop = kept.stop(step)
        return None if stop is None else str(stop)
    (kept.begin() / "model.txt").write_text(f"of step {step}")
    kept.finish(step, reward, [2])
    return None


def model_in(root: Path) -> str:
    return (root / "runs/r/checkpoints/best/model.txt").read_text()


def test_the_best_model_is_replaced_by_a_better_one_alone(tmp_path: Path) -> None:
    kept, metrics = keeper(tmp_path, patience=None)
    for step, reward in ((5, 0.2), (10, 0.6), (15, 0.6), (20, 0.5), (25, 0.1), (30, 0.1)):
        assert evaluated(kept, metrics, step, reward) is None
    assert kept.best() == BestEvaluation(10, 0.6)
    assert model_in(tmp_path) == "of step 10"
    assert [path.name for path in (tmp_path / "runs/r/checkpoints").iterdir()] == ["best"]


def test_training_stops_after_so_many_evaluations_without_a_better_one(tmp_path: Path) -> None:
    kept, metrics = keeper(tmp_path)
    told = [
        evaluated(kept, metrics, step, reward)
        for step, reward in ((1, 0.5), (2, 0.1), (3, 0.7), (4, 0.7))
    ]
    assert told == [None] * 4
    stop = evaluated(kept, metrics, 5, 0.2)
    assert stop is not None
    assert "step 5: the last 2 evaluations were not better than that of step 3 (0.700)" in stop


def test_a_resumed_run_counts_on_and_a_repeated_step_once(tmp_path: Path) -> None:
    kept, metrics = keeper(tmp_path, patience=3)
    for step, reward in ((1, 0.5), (2, 0.1), (3, 0.1)):
        assert evaluated(kept, metrics, step, reward) is None
    again, metrics = keeper(tmp_path, patience=3, attempt=2)
    assert evaluated(again, metrics, 3, 0.2) is None
    assert again.best() == BestEvaluation(1, 0.5)
    assert evaluated(again, metrics, 4, 0.2) is not None


def test_a_process_killed_while_it_replaced_the_best_has_lost_nothing(tmp_path: Path) -> None:
    kept, metrics = keeper(tmp_path)
    evaluated(kept, metrics, 1, 0.5)
    place = tmp_path / "runs/r/checkpoints/best"
    place.rename(place.with_name(".best.former"))
    assert keeper(tmp_path)[0].best() == BestEvaluation(1, 0.5)
    assert model_in(tmp_path) == "of step 1"
