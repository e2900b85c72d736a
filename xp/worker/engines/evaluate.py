"""Plays the held-out tasks with models of a run, and records what the run plays of them.

    python -m xp.worker.engines.evaluate <config.json>

All models play the same tasks from the same seeds, so that the difference is the training's. The training plays them on
its own engine; this program plays what it left.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from xp.envs.config import EpisodeConfig
from xp.episode.evaluation import RECORD, evaluation_record, read_evaluation
from xp.episode.metrics import EpisodeFacts, check_health, episode_metrics, void_reasons
from xp.episode.metrics_file import last_step
from xp.episode.mixture import EnvironmentMixture
from xp.episode.upload import Recorder
from xp.errors import ExitCode, XpError
from xp.lib.atomic import write_atomically, write_json
from xp.lib.digest import digest_of, text_digest
from xp.lib.load import import_large
from xp.lib.progress import evaluation_bar
from xp.lib.reading import config_of
from xp.spec import RunSpec, Sampling
from xp.tasks.config import Purpose
from xp.tasks.manifest import TABLE, read_manifest
from xp.tasks.request import scoring
from xp.tasks.row import read_rows
from xp.tasks.schedule import evaluated_episodes
from xp.worker.best import METRIC, STAGE
from xp.worker.engines.config import EvaluateConfig
from xp.worker.engines.local import local_engine
from xp.worker.engines.play import EpisodePlay, sample_numbers
from xp.worker.played import record, with_group_rewards
from xp.worker.program import run_stage
from xp.worker.stage import BEFORE, StageConfig
from xp.worker.tasks import held_out_tasks, policy_chat
from xp.worker.token_budget import evaluation_sampling

TRAINED_ON = "tasks/trained_on"
"""Metric of the share of held-out tasks that are trained on as well; absent if there are none."""


def main(argv: Sequence[str]) -> None:
    """Plays the models of the config that have no result yet."""
    path = Path(argv[0])
    config = config_of(path, EvaluateConfig.from_json)
    import_large("transformers.models.auto" if config.server else "transformers.modeling_utils")
    evaluation = RunEvaluation(config, path.with_name("episode.json"))
    for name, model in config.models.items():
        if evaluation.is_due(name):
            evaluation.add(name, _play(config, name, model, path.parent))


def _play(config: EvaluateConfig, name: str, model: str, stage: Path) -> list[EpisodeFacts]:
    spec = config.spec
    chat = policy_chat(config, model, stage)
    episodes = evaluated_episodes(spec.evaluation, held_out_tasks(config, stage, chat))
    numbered = list(zip(episodes, sample_numbers([row.task_id for row in episodes]), strict=True))
    with (
        EnvironmentMixture.from_file(stage / "episode.json", os.environ) as mix,
        Recorder(
            stage / "trajectories" / f"{name}.jsonl", mix, config.upload_as, os.environ
        ) as recorder,
        local_engine(
            spec.backend.engine.name, config.server, model, chat, spec, stage
        ) as open_engine,
    ):
        rollouts = EpisodePlay(open_engine, chat, numbered, mix, slots=spec.evaluation.batch_size)
        bar = evaluation_bar(f"evaluate {name}", len(numbered), rollouts)
        ended = (rollout.record for rollout in bar)
        settled = with_group_rewards(mix, ended, spec.evaluation.samples_per_task)
        return record(settled, recorder, config.places.run, f"evaluate/{name}", 0)


class RunEvaluation:
    """The evaluation of all models of an evaluate stage's config, whichever stages of the run play them.

    The result of each model is `MODEL/eval.json` in the stage's directory.

    Args:
        config: input of the evaluate stage.
        episodes: `episode.json` of the stage that plays.
        root: the outputs root.
    """

    def __init__(self, config: EvaluateConfig, episodes: Path, root: Path = Path()) -> None:
        self.samples_per_task = config.spec.evaluation.samples_per_task
        self._config = config
        self._root = root
        self._stage = root / config.stage_dir
        self._metrics = root / config.places.metrics
        self._tasks = root / config.places.tasks
        self._scored_by = scoring(EpisodeConfig.from_json(episodes.read_text(encoding="utf-8")))
        # Before the episodes, which a damaged table must not lose.
        self._hashes = {
            row.task_id: row.task_hash for row in read_rows(self._tasks / TABLE, Purpose.HELD_OUT)
        }
        self._copy_earlier()

    def is_due(self, name: str) -> bool:
        """Returns whether a model is to be played: the config has it, and there is no result yet."""
        return name in self._config.models and not self._is_recorded(name, self._stage)

    def add(self, name: str, played: Sequence[EpisodeFacts], *, writes: bool = True) -> None:
        """Records all episodes of a model.

        Args:
            name: the model's name in the config.
            played: its episodes, in the order of the tasks.
            writes: whether this process writes the files.

        Raises:
            XpError: (UNHEALTHY) too many episodes are void, or all.
        """
        spec = self._config.spec
        places = self._config.places
        check_health(played, spec.training.max_void_fraction)
        if all(episode.outcome.reward is None for episode in played):
            reasons = void_reasons(episode.outcome.void_reason for episode in played)
            raise XpError(
                f"every held-out episode is void: the environment is failing ({reasons})",
                ExitCode.UNHEALTHY,
            )
        if not writes:
            return
        model = self._config.models[name]
        # A checkpoint's step is not known here; what the run trained has that of the last update.
        step = last_step(self._metrics) if model == places.model else None
        metrics = evaluation_metrics(name, played, spec.evaluation.pass_threshold, self._tasks)
        self._config.metrics_file("evaluate", self._root).write(step or 0, metrics)
        run = Path(places.run).name
        rules = read_manifest(self._tasks).held_out
        about = {
            "id": f"{run}/{name}",
            "env": "+".join(self._scored_by),
            "model": {"kind": "checkpoint", "name": name, "id": model},
            "run": run,
            "task_set": self._tasks.name,
            "held_out": {
                name: asdict(rule) | {"line": rule.line()} for name, rule in rules.items()
            },
            "playing": playing(spec),
            "digest": self._digest(name),
        }
        value = evaluation_record(about, played, self._hashes, self._scored_by, len(played))
        write_json(self._stage / name / RECORD, value)

    def _copy_earlier(self) -> None:
        """Copies the result of an earlier attempt for the model before training, which is the same in all."""
        run = self._stage.absolute().parents[1]
        for attempt in range(self._config.places.attempt - 1, 0, -1):
            earlier = run / f"attempt_{attempt}" / self._stage.name
            if self.is_due(BEFORE) and self._is_recorded(BEFORE, earlier):
                write_atomically(
                    self._stage / BEFORE / RECORD, (earlier / BEFORE / RECORD).read_text()
                )

    def _is_recorded(self, name: str, stage: Path) -> bool:
        file = stage / name / RECORD
        return file.is_file() and read_evaluation(file).digest == self._digest(name)

    def _digest(self, name: str) -> str:
        """Digest of all that decides a model's result, independent of the attempt and of the training."""
        config = self._config
        rules = [playing(config.spec), config.spec.model.dtype.value, self._scored_by]
        return digest_of(
            [config.models[name], config.places.tasks, rules, sorted(self._hashes.items())]
        )


def playing(spec: RunSpec) -> dict[str, Any]:
    """Settings that decide how held-out episodes are played and counted, as JSON values."""
    return {
        "tasks": Purpose.HELD_OUT.value,
        **spec.evaluation.model_dump(include={"num_tasks", "samples_per_task", "pass_threshold"}),
        **evaluation_sampling(spec).model_dump(mode="json", include={*Sampling.model_fields}),
        "seed": spec.seed,
        "chat_template": spec.model.template_arguments,
        "template": None if spec.model.template is None else text_digest(spec.model.template),
        "tools_prompt": spec.model.tools_prompt.value,
        "images": None if spec.model.images is None else spec.model.images.model_dump(),
    }


def evaluated_while_training(
    config: StageConfig,
    played: Sequence[EpisodeFacts],
    step: int,
    root: Path = Path(),
    *,
    writes: bool = True,
) -> float:
    """Writes the metrics of an evaluation during training; returns its reward.

    Args:
        config: input of the training.
        played: all its episodes.
        step: number of rollout steps that the policy was trained for.
        root: the outputs root.
        writes: whether this process writes the metrics.

    Raises:
        XpError: (UNHEALTHY) too many episodes are void.
    """
    spec = config.spec
    check_health(played, spec.training.max_void_fraction)
    tasks = root / config.places.tasks
    metrics = evaluation_metrics("during", played, spec.evaluation.pass_threshold, tasks)
    if writes:
        config.metrics_file(STAGE, root).write(step, metrics)
    return metrics[METRIC]


def evaluation_metrics(
    name: str, played: Sequence[EpisodeFacts], pass_threshold: float, tasks: Path
) -> dict[str, float]:
    """The metrics of one evaluation under its name.

    Args:
        name: `before`, `after` or `during`.
        played: all its episodes.
        pass_threshold: smallest reward that is a pass.
        tasks: directory of the task set.
    """
    metrics = episode_metrics(played, 1, pass_threshold)
    records = read_manifest(tasks).held_out.values()
    num_trained_on = sum(record.num_trained_on for record in records)
    if num_trained_on:
        metrics[TRAINED_ON] = num_trained_on / sum(record.num_held_out for record in records)
    return {f"evaluation/{name}/{key}": value for key, value in metrics.items()}


if __name__ == "__main__":
    sys.exit(run_stage(main, sys.argv[1:]))
