"""One line of metrics a rollout step: what the Outcomes say, and what Slime's training processes log, under xp's names.

The rollout process writes its half of a step to a file before training begins; the training process that logs joins
both after the step's last update. All of them see the outputs directory.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from xp.atomic import write_atomically
from xp.backends.slime.checkpoints import prune
from xp.backends.slime.config import WORKER_ATTRIBUTE, WorkerConfig
from xp.backends.slime.worker import Worker, read_played, worker
from xp.episode.metrics import Played, check_health, episode_metrics
from xp.episode.metrics_file import MetricsFile

NAMES: Mapping[str, str] = {
    "train/loss": "training/loss",
    "train/pg_loss": "training/policy_loss",
    "train/kl_loss": "training/kl",
    "train/entropy_loss": "training/entropy",
    "train/pg_clipfrac": "training/clip_fraction",
    "train/grad_norm": "training/grad_norm",
    "train/lr-pg_0": "training/learning_rate",
    "train/train_rollout_logprob_abs_diff": "training/logprob_gap",
}
"""Slime's name -> ours."""
DROPPED = "rollout/dynamic_filter/drop_"


def log_rollout(
    rollout_id: int, args: Any, samples: Sequence[Any], extra_metrics: Mapping[str, Any] | None, rollout_time: float
) -> bool:
    """Slime's custom rollout log function; True: Slime logs nothing of its own.

    Raises:
        XpError: (UNHEALTHY) too many of the step's episodes are void; it stops before anything is trained on them.
    """
    own = worker(args)
    config = own.config
    played = [read_played(sample.metadata) for sample in samples]
    own.end_step(is_last=_is_last(config, rollout_id) and not _is_evaluated(args, rollout_id))
    check_health(played, config.common.max_void_fraction)
    dropped = sum(value for name, value in (extra_metrics or {}).items() if name.startswith(DROPPED))
    metrics = {**episode_metrics(played, config.group_size), "time/rollout_s": rollout_time}
    if args.dynamic_sampling_filter_path is not None:
        metrics["episodes/groups_left_out"] = float(dropped)
    if args.debug_rollout_only:
        _file(config).write(rollout_id + 1, metrics)
    else:
        half = {"began": time.time() - rollout_time, "metrics": metrics}
        write_atomically(_half(config, rollout_id), json.dumps(half) + "\n")
    if config.checkpoints is not None and config.exports is not None:
        prune(own.path(config.checkpoints), own.path(config.exports), config.keep_checkpoints)
    return True


def log_evaluation(
    rollout_id: int, args: Any, data: Mapping[str, Any], extra_metrics: Mapping[str, Any] | None
) -> bool:
    """Slime's custom evaluation log function: episodes to a file where evaluating is the stage, else metrics."""
    del extra_metrics
    own = worker(args)
    played = [read_played(sample.metadata) for one in data.values() for sample in one["samples"]]
    own.end_step(is_last=own.config.phase != "train" or _is_last(own.config, rollout_id))
    if own.config.phase != "train":
        _write_played(own, played)
        return True
    check_health(played, own.config.common.max_void_fraction)
    metrics = {f"evaluation/during/{key}": value for key, value in episode_metrics(played, 1).items()}
    file = MetricsFile(own.path(own.config.common.metrics), "evaluate_during", own.config.common.attempt)
    file.write(rollout_id + 1, metrics)
    return True


def watch_training(args: Any) -> None:
    """Slime's custom Megatron init function: what a training process logs reaches metrics.jsonl too, at once.

    Slime's event files would come up to two minutes late, and without the last steps: their writer is never closed.
    """
    from slime.observability import logging_utils

    if isinstance(logging_utils.log, _Watched):
        return
    config = WorkerConfig.from_json(Path(getattr(args, WORKER_ATTRIBUTE)).read_text())
    logging_utils.log = _Watched(logging_utils.log, config)


class _Watched:
    """Slime's log function, overheard."""

    def __init__(self, native: Callable[..., None], config: WorkerConfig) -> None:
        self._native, self._config = native, config
        self._updates: list[dict[str, float]] = []

    def __call__(self, args: Any, metrics: Mapping[str, Any], step_key: str) -> None:
        self._native(args, metrics, step_key)
        if step_key == "train/step":
            self.update(int(metrics[step_key]), metrics)

    def update(self, number: int, metrics: Mapping[str, Any]) -> None:
        """An optimizer update was made; the last one of a step completes its line."""
        self._updates.append({ours: float(metrics[name]) for name, ours in NAMES.items() if name in metrics})
        rollout_id, position = divmod(number, self._config.updates_per_step)
        if position + 1 < self._config.updates_per_step:
            return
        names = {name for update in self._updates for name in update}
        training = {name: fmean(update[name] for update in self._updates if name in update) for name in sorted(names)}
        self._updates = []
        half = json.loads(_half(self._config, rollout_id).read_text())
        line = {**half["metrics"], **training, "time/step_s": time.time() - half["began"]}
        _file(self._config).write(rollout_id + 1, line)


def _is_last(config: WorkerConfig, rollout_id: int) -> bool:
    return rollout_id + 1 >= config.num_steps


def _is_evaluated(args: Any, rollout_id: int) -> bool:
    """Whether Slime plays the held-out tasks after this step."""
    return args.eval_interval is not None and (rollout_id + 1) % args.eval_interval == 0


def _write_played(own: Worker, played: Sequence[Played]) -> None:
    from dataclasses import asdict

    write_atomically(played_file(own.config), json.dumps([asdict(one) for one in played]) + "\n")


def played_file(config: WorkerConfig) -> Path:
    """Where an evaluation's episodes are handed to the stage's program."""
    return Path(config.root, config.common.stage_dir, "played", f"{config.phase.rpartition('/')[2]}.json")


def _half(config: WorkerConfig, rollout_id: int) -> Path:
    return Path(config.root, config.common.stage_dir, "steps", f"{rollout_id}.json")


def _file(config: WorkerConfig) -> MetricsFile:
    return MetricsFile(Path(config.root, config.common.metrics), "train", config.common.attempt)
