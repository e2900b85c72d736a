"""Evaluations on held-out tasks: before and after a training, in its own stage or another one, and during it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from xp.envs.config import EpisodeConfig
from xp.episode.evaluation import evaluation_result, write_evaluation
from xp.episode.metrics import EpisodeFacts, check_health
from xp.episode.metrics_file import MetricsFile, last_step
from xp.lib.atomic import write_atomically
from xp.lib.digest import canonical_json, digest_of
from xp.tasks.evaluated import evaluation_metrics, held_out_hashes, held_out_on_record
from xp.tasks.request import scoring
from xp.worker.best import METRIC, STAGE
from xp.worker.stage import BEFORE, EvaluateConfig, StageConfig

DECIDING: Final = ("tasks", "chat", "rounds", "sampling", "pass_threshold", "dtype", "limits", "seed", "command")
"""Fields of an evaluation's config that decide a model's result."""


class RunEvaluation:
    """The evaluation of all models of an evaluate stage's config, whichever stages of the run play them.

    The result of each model is a file in the stage's directory; evaluation.json has those of all.

    Args:
        config: input of the evaluate stage.
        episodes: `episode.json` of the stage that plays.
        root: the outputs root.
    """

    def __init__(self, config: EvaluateConfig, episodes: Path, root: Path = Path()) -> None:
        self.samples_per_task = config.rounds.samples_per_task
        self._config, self._stage = config, root / config.common.stage_dir
        self._metrics, self._tasks = root / config.common.metrics, root / config.common.tasks
        self._scored_by = scoring(EpisodeConfig.from_json(episodes.read_text(encoding="utf-8")))
        self._hashes = held_out_hashes(self._tasks)  # before the episodes, which a damaged table must not lose

    def is_due(self, name: str) -> bool:
        """Returns whether a model is to be played: the config has it, and there is no result yet."""
        return name in self._config.models and self._recorded(name) is None

    def add(self, name: str, played: Sequence[EpisodeFacts], *, writes: bool = True) -> None:
        """Records all episodes of a model, and writes evaluation.json when every model has its result.

        Args:
            name: the model's name in the config.
            played: its episodes, in the order of the tasks.
            writes: whether this process writes the files.

        Raises:
            XpError: (UNHEALTHY) too many episodes are void.
        """
        common = self._config.common
        check_health(played, common.max_void_fraction)
        if not writes:
            return
        result = evaluation_result(played, common.pass_threshold)
        hashes = {one.task_id: self._hashes[one.task_id] for one in played if one.task_id in self._hashes}
        # A checkpoint's step is not known here; what the run trained has that of the last update.
        trained = last_step(self._metrics) if self._config.models[name] == f"{common.run}/model" else None
        metrics = MetricsFile(self._metrics, "evaluate", common.attempt)
        metrics.write(trained or 0, evaluation_metrics(name, played, common.pass_threshold, self._tasks))
        part = {"evaluation": self._key(name), "result": result, "task_hashes": hashes}
        write_atomically(self._stage / f"{name}.json", json.dumps(part) + "\n")
        self.finish()

    def finish(self) -> None:
        """Writes evaluation.json, if every model has its result."""
        parts = {name: self._recorded(name) for name in self._config.models}
        complete = {name: part for name, part in parts.items() if part is not None}
        if len(complete) < len(parts):
            return
        results = {name: part["result"] for name, part in complete.items()}
        hashes = {task: digest for part in complete.values() for task, digest in part["task_hashes"].items()}
        on_record = held_out_on_record(self._tasks)
        file = self._stage / "evaluation.json"
        write_evaluation(file, self._config.models, results, on_record, hashes, self._scored_by)

    def _recorded(self, name: str) -> dict[str, Any] | None:
        """A model's result; an earlier attempt's counts for the model before training, which is the same."""
        earlier = range(self._config.common.attempt - 1, 0, -1) if name == BEFORE else ()
        run = self._stage.absolute().parents[1]
        for stage in (self._stage, *(run / f"attempt_{attempt}" / self._stage.name for attempt in earlier)):
            file = stage / f"{name}.json"
            if file.is_file() and (part := json.loads(file.read_text()))["evaluation"] == self._key(name):
                return dict(part)
        return None

    def _key(self, name: str) -> str:
        """Digest of all that decides a model's result, independent of the attempt and of the training."""
        config = self._config
        fields = asdict(config.common) | asdict(config)
        text = canonical_json({field: fields[field] for field in DECIDING if field in fields})
        text = text.replace(f"/attempt_{config.common.attempt}/", "/")
        return digest_of([config.models[name], text, self._scored_by, sorted(self._hashes.items())])


def evaluate_models(config: EvaluateConfig, stage: Path, play: Callable[[str, str], Sequence[EpisodeFacts]]) -> None:
    """Evaluates the models of the config that have no result yet, and writes evaluation.json.

    Args:
        config: input of the stage.
        stage: directory of the stage.
        play: plays all held-out episodes; its arguments are the model's name in the evaluation, and its path or id.

    Raises:
        XpError: (UNHEALTHY) too many episodes of a model are void.
    """
    evaluation = RunEvaluation(config, stage / "episode.json")
    for name, model in config.models.items():
        if evaluation.is_due(name):
            evaluation.add(name, play(name, model))
    evaluation.finish()


def evaluated_while_training(
    common: StageConfig, played: Sequence[EpisodeFacts], step: int, root: Path = Path(), *, writes: bool = True
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
