"""The rollout's half of one line of metrics a step: what the episodes' results say.

It is written to a file before training begins; the training process that logs (worker/training.py) joins both halves
after the step's last update. All of them see the outputs directory.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from xp.backends.slime.worker.config import WorkerConfig
from xp.backends.slime.worker.models import linked_copy
from xp.backends.slime.worker.rollout_process import (
    DURING,
    Worker,
    by_episode,
    read_played,
    worker_of,
)
from xp.episode.metrics import all_tokens, check_health, episode_metrics
from xp.lib.atomic import write_atomically
from xp.worker.best import BestKeeper
from xp.worker.engines.evaluate import evaluated_while_training
from xp.worker.stage import BEFORE


def log_rollout(
    rollout_id: int,
    args: Any,
    samples: Sequence[Any],
    extra_metrics: Mapping[str, Any] | None,
    rollout_time: float,
) -> bool:
    """Slime's custom rollout log function. True means that Slime logs nothing of its own.

    Raises:
        XpError: (UNHEALTHY) too many of the step's episodes are void; it stops before anything is trained on them.
    """
    del extra_metrics
    worker = worker_of(args)
    config = worker.config
    training = config.spec.training
    played = [read_played(sample.metadata) for sample in by_episode(samples)]
    # Slime names the kept groups alone; as on SkyRL, a step's metrics are of all that were played.
    judged = worker.judged
    worker.num_steps_played += 1
    worker.end_step(is_last=worker.is_last(rollout_id) and worker.due(rollout_id) is None)
    check_health(played, training.max_void_fraction)
    metrics = episode_metrics(
        judged or played, training.group_size, config.spec.evaluation.pass_threshold
    )
    metrics["time/rollout_s"] = rollout_time
    if worker.start_s is not None and worker.num_steps_played == 1:
        metrics["time/start_s"] = worker.start_s
    if training.max_staleness:
        # The first rollout of a process is that of the weights that it begins with.
        metrics["training/staleness"] = float(worker.num_steps_played > 1)
    if worker.curriculum is not None:
        metrics |= worker.curriculum.settle(rollout_id, played)
    if judged:
        metrics["episodes/groups_left_out"] = float(
            len(judged) // training.group_size - training.prompts_per_step
        )
    if args.debug_rollout_only:
        config.metrics_file("train", Path(config.root)).write(rollout_id + 1, metrics)
    else:
        half = {
            "began": time.time() - rollout_time,
            "metrics": metrics | all_tokens(judged or played),
        }
        write_atomically(half_of(config, rollout_id), json.dumps(half) + "\n")
    checkpoints = config.checkpoints_in(Path(config.root))
    chat = worker.chat()
    checkpoints.seal_exports(chat.end_ids, chat.template)
    checkpoints.prune(training.keep_checkpoints)
    return True


def log_evaluation(
    rollout_id: int, args: Any, data: Mapping[str, Any], extra_metrics: Mapping[str, Any] | None
) -> bool:
    """Slime's custom evaluation log function: records the result of a model, and the metrics.

    Raises:
        XpError: too many episodes are void (UNHEALTHY).
        EarlyStop: while training, none was better for long enough.
    """
    del extra_metrics
    worker = worker_of(args)
    played = [
        read_played(sample.metadata) for group in data.values() for sample in group["samples"]
    ]
    if not played:
        return True  # none was due
    name = worker.evaluated or worker.due(rollout_id)
    config = worker.config
    worker.end_evaluation()
    worker.end_step(is_last=name != BEFORE and worker.is_last(rollout_id))
    if name is not None and name != DURING:
        assert worker.evaluation is not None  # its config has the models
        worker.evaluation.add(name, played)
    if name != BEFORE and worker.is_during(rollout_id):
        reward = evaluated_while_training(config, played, rollout_id + 1, Path(config.root))
        keeper = BestKeeper.of(config, Path(config.root))
        if keeper is not None:
            _consider(worker, keeper, rollout_id, reward)
    return True


def _consider(worker: Worker, keeper: BestKeeper, rollout_id: int, reward: float) -> None:
    """Keeps the export of the step where it is the best so far; else raises EarlyStop where it is time.

    The step has an export: `evaluation.every` is a multiple of `training.export_every`.
    """
    if keeper.is_better(reward):
        staged = keeper.begin()
        if keeper.rule.keep_best:
            linked_copy(worker.path(worker.config.exports) / str(rollout_id), staged)
        chat = worker.chat()
        keeper.finish(rollout_id + 1, reward, chat.end_ids, chat.template)
    elif not worker.is_last(rollout_id):
        stop = keeper.stop(rollout_id + 1)
        if stop is not None:
            worker.end_step(is_last=True)
            raise stop


def half_of(config: WorkerConfig, rollout_id: int) -> Path:
    """File in which the rollout's half of a step waits for the training's half."""
    return Path(config.root, config.stage_dir, "steps", f"{rollout_id}.json")
