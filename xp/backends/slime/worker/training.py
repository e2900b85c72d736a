"""The part of xp in Slime's training processes: captures metrics, and sets the critic's advantage function."""

from __future__ import annotations

import json
import time
from argparse import Namespace
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from xp.backends.slime.worker.config import WORKER_ATTRIBUTE, WorkerConfig, config_at
from xp.backends.slime.worker.means import distill_kl, factor, loss_factor
from xp.backends.slime.worker.metric_names import (
    LOSSES,
    NATIVE,
    NOT_MEANS,
    OF_CRITIC,
    OF_WEIGHTS,
    RATE,
)
from xp.backends.slime.worker.models import local_model, set_yarn
from xp.backends.slime.worker.steps import half_of
from xp.backends.slime.worker.text_network import adapt, whole_exports
from xp.episode.finite import finite_means
from xp.lib.atomic import write_atomically
from xp.spec import Estimator
from xp.worker import importance
from xp.worker.slime_names import OVER_TRAINED_TOKENS
from xp.worker.step_log import StepLog, check_gap

WATCHED = ("loss", "grad_norm", "value_loss", "critic_grad_norm")
"""Values of an update that must be finite, by xp's names."""


def enter(args: Any) -> None:
    """Slime's custom Megatron init function; runs in each training process before its model is built.

    What it logs reaches metrics.jsonl too, at once: Slime's event files would come up to two minutes late, and without
    the last steps, as their writer is never closed. Slime takes the advantage function from its critic
    (slime/utils/arguments.py, _apply_megatron_role_overrides), whose returns would then be Slime's own: here it is set.
    """
    from slime.backends.megatron_utils import actor, model
    from slime.observability import logging_utils

    config = config_at(getattr(args, WORKER_ATTRIBUTE))
    set_yarn(args)
    adapt(args)
    if config.spec.algorithm.estimator is Estimator.GAE:
        args.custom_advantage_function_path = OVER_TRAINED_TOKENS
    if not isinstance(logging_utils.log, CapturedLog):
        logging_utils.log = watched = CapturedLog(logging_utils.log, config)
        model.train_one_step = watched.noting_rate(model.train_one_step)
        actor.save_hf_model_to_path = exporting(config, actor.save_hf_model_to_path)


def exporting(config: WorkerConfig, native: Callable[..., None]) -> Callable[..., None]:
    """Wraps Slime's function that writes a checkpoint's Hugging Face model, to do so by `training.export_every`, and in
    the form of the model that is trained, where --hf-checkpoint is the engines' with FP8 weights. A model with parts for
    pictures or sound gets those of its start."""
    every = config.spec.training.export_every
    has_twin = config.spec.backend.engine.quantized_model is not None
    whole = whole_exports(native)

    def save(args: Any, path: Path, *parts: Any, **named: Any) -> None:
        step = int(path.name) + 1
        if every is None or step % every == 0 or step == config.steps:
            start = args.hf_checkpoint
            if has_twin:
                start = str(local_model(config.start_model, Path(config.root)))
            whole(Namespace(**{**vars(args), "hf_checkpoint": start}), path, *parts, **named)

    return save


def _share(name: str, update: int) -> float:
    """Factor of a metric of Slime's, which is a mean over excluded episodes too."""
    if name.endswith(NOT_MEANS):
        return 1.0
    if name in LOSSES:
        return loss_factor(update)
    return factor(update)


class CapturedLog(StepLog):
    """Slime's log function, wrapped to capture its values."""

    def __init__(self, native: Callable[..., None], config: WorkerConfig) -> None:
        root = Path(config.root)
        super().__init__(config, config.metrics_file("train", root), root=root)
        self._native = native
        self._config = config
        self._updates: list[dict[str, float]] = []
        self._ended = 0.0
        """Time of the last line."""
        self._rate: float | None = None
        """Learning rate of the update that is computed."""

    def __call__(self, args: Any, metrics: Mapping[str, Any], step_key: str) -> None:
        self._native(args, metrics, step_key)
        if step_key == "train/step":
            rates = {}
            if self._rate is not None:
                rates = {name: self._rate for name in metrics if name.endswith(RATE)}
            self.update(int(metrics[step_key]), {**metrics, **rates})

    def noting_rate(self, native: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps Slime's function for an update, to note the update's learning rate: Slime logs that of the next one."""

        def train_one_step(*parts: Any, **named: Any) -> Any:
            optimizer, scheduler = parts[5:7]
            self._rate = float(scheduler.get_lr(optimizer.param_groups[0]))
            return native(*parts, **named)

        return train_one_step

    def update(self, number: int, metrics: Mapping[str, Any]) -> None:
        """Records an optimizer update, or one that Slime skipped because its gradient is not finite.

        The last one of a step completes its line, the first one is held against `training.max_logprob_gap`. Raises
        XpError(DIVERGED) where the run is to stop.

        A critic's process has no line of its own. It leaves its part in a file: Slime trains the policy after it, on
        its values.
        """
        rollout_id, position = divmod(number, self._config.spec.training.updates_per_step)
        self._updates.append(
            {
                metric: float(metrics[name]) * _share(name, position)
                for name, metric in NATIVE.items()
                if name in metrics
            }
            | {name: float(metrics[name]) for name in OF_WEIGHTS if name in metrics}
        )
        watched = {metric: self._updates[-1].get(f"training/{metric}") for metric in WATCHED}
        self._finite.are_finite(rollout_id + 1, watched)
        self.count_update(watched["grad_norm"])
        gap = self._updates[0].get("training/logprob_gap")
        if position == 0 and gap is not None and not self._is_stale(rollout_id):
            check_gap(rollout_id + 1, gap, self._training.max_logprob_gap)
        if position + 1 < self._config.spec.training.updates_per_step:
            return
        training = finite_means(self._updates) | distill_kl()
        if OF_WEIGHTS[0] in training:
            training |= importance.metrics([training.pop(name) for name in OF_WEIGHTS])
        self._updates = []
        if any(name.startswith(OF_CRITIC) for name in metrics):
            write_atomically(_critics(self._config, rollout_id), json.dumps(training) + "\n")
            return
        if self._config.spec.algorithm.estimator is Estimator.GAE:
            training |= json.loads(_critics(self._config, rollout_id).read_text())
        half = json.loads(half_of(self._config, rollout_id).read_text())
        # A step that is sampled during the one before begins when that one ends.
        began = max(half["began"], self._ended)
        self._ended = time.time()
        self.line(
            rollout_id + 1,
            {**half["metrics"], **training, "time/step_s": max(0.0, self._ended - began)},
        )

    def _is_stale(self, rollout_id: int) -> bool:
        """Returns whether a step's episodes are of an older policy than the one that is updated."""
        if not self._config.spec.training.max_staleness:
            return False
        half = json.loads(half_of(self._config, rollout_id).read_text())
        return bool(half["metrics"]["training/staleness"])


def _critics(config: WorkerConfig, rollout_id: int) -> Path:
    return half_of(config, rollout_id).with_name(f"{rollout_id}.critic.json")
