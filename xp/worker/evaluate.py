"""Evaluations: all models of an evaluate stage, and the current policy during training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from xp.envs.config import EpisodeConfig
from xp.episode.evaluation import evaluation_result, write_evaluation
from xp.episode.metrics import Played, check_health
from xp.episode.metrics_file import MetricsFile, last_step
from xp.tasks.evaluated import evaluation_metrics, held_out_hashes, held_out_on_record
from xp.tasks.request import scoring
from xp.worker.best import METRIC, STAGE
from xp.worker.stage import EvaluateConfig, StageConfig


def evaluate_models(config: EvaluateConfig, stage: Path, play: Callable[[str, str], Sequence[Played]]) -> None:
    """Evaluates all models of the config and writes evaluation.json.

    Args:
        config: input of the stage.
        stage: directory of the stage.
        play: plays all held-out episodes; its arguments are the model's name in the evaluation, and its path or id.

    Raises:
        XpError: (UNHEALTHY) too many episodes of a model are void.
    """
    common, tasks = config.common, Path(config.common.tasks)
    metrics = MetricsFile(Path(common.metrics), "evaluate", common.attempt)
    results = {}
    scored_by = scoring(EpisodeConfig.from_json((stage / "episode.json").read_text(encoding="utf-8")))
    hashes = held_out_hashes(tasks)  # before the episodes, which a damaged table must not lose
    on_record: dict[str, str] = {}
    trained = last_step(Path(common.metrics))
    for name, model in config.models.items():
        played = play(name, model)
        check_health(played, common.max_void_fraction)
        results[name] = evaluation_result(played, common.pass_threshold)
        on_record |= {one.task_id: hashes[one.task_id] for one in played if one.task_id in hashes}
        # A checkpoint's step is not known here; what the run trained has that of the last update.
        step = trained if trained is not None and model == f"{common.run}/model" else 0
        metrics.write(step, evaluation_metrics(name, played, common.pass_threshold, tasks))
    write_evaluation(stage / "evaluation.json", config.models, results, held_out_on_record(tasks), on_record, scored_by)


def evaluated_while_training(
    common: StageConfig, played: Sequence[Played], step: int, root: Path = Path(), *, writes: bool = True
) -> float:
    """Writes the metrics of an evaluation during training; returns its reward.

    Args:
        common: input of the training.
        played: all its episodes.
        step: number of rollout steps that the policy was trained for.
        root: the outputs root.
        writes: whether this process writes the metrics.

    Raises:
        XpError: (UNHEALTHY) too many episodes are void.
    """
    check_health(played, common.max_void_fraction)
    metrics = evaluation_metrics("during", played, common.pass_threshold, root / common.tasks)
    if writes:
        MetricsFile(root / common.metrics, STAGE, common.attempt).write(step, metrics)
    return metrics[METRIC]
