"""Trainings of TRL's whose untrained policy plays fake sessions, in the test's process."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.jobs import train_config
from tests.support.sections import with_model
from tests.support.tiny import leave_model, tokenizer_and_model
from xp.backends.trl.worker.async_rollouts import AsyncRollouts
from xp.backends.trl.worker.config import TRLTrainConfig
from xp.backends.trl.worker.process import Ranks, TrainingProcess
from xp.backends.trl.worker.rollout import Rollouts, decide_together
from xp.backends.trl.worker.steps import TRLStepLog
from xp.backends.trl.worker.train import make_trainer
from xp.envs.base import ToolResult
from xp.episode.metrics_file import MetricsFile
from xp.episode.tokens import ChatTokens
from xp.episode.upload import Recorder
from xp.spec import RunSpec
from xp.tasks.curriculum import curriculum_of
from xp.tasks.row import TaskRow
from xp.worker.places import RunPaths


def paid(text: str) -> ToolResult:
    """A reward that depends on every letter, so that another letter anywhere changes what is learned and drawn."""
    return ToolResult("go on", sum(map(ord, text)) % 5 / 4, awaits_reply=True)


@contextmanager
def training(
    root: Path,
    spec: RunSpec,
    mix: Any,
    tasks: Sequence[TaskRow],
    order: Sequence[TaskRow],
    *,
    model: Path | None = None,
    chat: ChatTokens | None = None,
) -> Iterator[tuple[Any, Any, TRLTrainConfig]]:
    """Context manager: a trainer in a directory, its rollouts and its config.

    Args:
        root: the outputs root.
        spec: of the run.
        mix: the environments.
        tasks: of the curriculum.
        order: the tasks in the order of training.
        model: of the policy. None means the tiny one, which is written.
        chat: its tokenizer. None means the tiny model's.
    """
    if model is None:
        model = root / "base"
        leave_model(model)
    config = train_config(TRLTrainConfig, spec, RunPaths(str(root), 1, "tasks"))
    config = with_model(config, model)
    metrics = Path(config.places.metrics)
    metrics.parent.mkdir(parents=True, exist_ok=True)
    log = TRLStepLog(config, MetricsFile(metrics, "train", 1))
    chat = chat or ChatTokens(tokenizer_and_model()[0])
    with Recorder(root / "trajectories.jsonl", mix, None, os.environ) as recorder:
        process = TrainingProcess(config, chat, mix, log, recorder, Ranks())
        num_steps = spec.training.num_steps
        assert num_steps is not None
        curriculum = curriculum_of(spec, tasks, num_steps, decide_together(Ranks()))
        kind = AsyncRollouts if spec.training.max_staleness else Rollouts
        rollouts = kind(process, order, None, curriculum)
        trainer = make_trainer(config, os.environ, chat, order, log, rollouts)
        try:
            yield trainer, rollouts, config
        finally:
            rollouts.close()
