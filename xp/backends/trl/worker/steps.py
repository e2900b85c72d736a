"""One line of metrics per rollout step, from the episodes' results and TRL's log, under xp's names."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from transformers import TrainerCallback

from xp.backends.trl.worker.config import TRLTrainConfig
from xp.backends.trl.worker.metric_names import NATIVE
from xp.episode.finite import finite_means
from xp.episode.metrics import EpisodeFacts, all_tokens, check_health, episode_metrics
from xp.episode.metrics_file import MetricsFile
from xp.worker.step_log import Start, StepLog, check_gap

OF_AN_UPDATE = ("loss", "grad_norm")
"""Metrics that a skipped update does not have."""


class TRLStepLog(StepLog, TrainerCallback):  # type: ignore[misc]
    """TRL's callback that collects a rollout step's metrics and writes them when its last optimizer update is done.

    Args:
        config: input of the training.
        file: metrics file; None in a process that does not write it.
        start: clock of the time before the first step.
    """

    def __init__(
        self, config: TRLTrainConfig, file: MetricsFile | None, start: Start | None = None
    ) -> None:
        super().__init__(config, file, num_steps=config.num_steps)
        self._config = config
        self.spec = config.spec
        self.updates_per_rollout = config.updates_per_rollout
        self.is_ahead = config.spec.training.max_staleness > 0
        """True if episodes may be of an older policy than the one that is updated."""
        self._episodes: dict[str, float] = {}
        self._updates: list[dict[str, float]] = []
        self._is_left_out = False
        """True if the last update was skipped."""
        self._start: dict[str, float] = {}
        self._clock = start
        self._began = time.monotonic()

    def begin(self) -> None:
        """Begins the first rollout step, unless it has begun."""
        if self._clock is not None:
            self._start = {"time/start_s": self._clock.total("first rollout")}
            self._clock = None
            self.begin_step()

    def begin_step(self) -> None:
        """Begins the time of a step, which is without the evaluation before it."""
        self._began = time.monotonic()
        self.unpause()

    def episodes(
        self,
        played: Sequence[EpisodeFacts],
        rollout_s: float,
        more: Mapping[str, float] | None = None,
    ) -> None:
        """Adds the episodes of a rollout step, of all ranks together, and further metrics.

        Raises:
            XpError: UNHEALTHY if too many episodes are void.
        """
        check_health(played, self._config.spec.training.max_void_fraction)
        spec = self._config.spec
        metrics = episode_metrics(played, spec.training.group_size, spec.evaluation.pass_threshold)
        self._episodes = {
            **metrics,
            **all_tokens(played),
            **(more or {}),
            "time/rollout_s": rollout_s,
        }
        if not self.is_ahead:
            self.gpus.rollout_ended()

    def is_applied(self, global_step: int, loss: float, grad_norm: float | None) -> bool:
        """Returns whether an update is applied; raises XpError(DIVERGED) if the run must stop."""
        step = self._config.rollout_steps(global_step) + 1
        self._is_left_out = not self._finite.are_finite(
            step, {"loss": loss, "gradient norm": grad_norm}
        )
        return not self._is_left_out

    def is_first(self, global_step: int) -> bool:
        """Returns whether the next update is the first of its rollout, with the weights that generated the episodes."""
        return global_step % self._config.updates_per_rollout == 0

    def gap(self, global_step: int, gap: float) -> None:
        """Adds the gap between engine and trainer; raises XpError(DIVERGED) if it is too large."""
        self._episodes["training/logprob_gap"] = gap
        if not self._episodes.get("training/staleness"):
            step = self._config.rollout_steps(global_step) + 1
            check_gap(step, gap, self._training.max_logprob_gap)

    def measured(self, metrics: Mapping[str, float]) -> None:
        """Adds what is measured before the updates of the step whose episodes are known."""
        self._episodes |= metrics

    def update(self, global_step: int, logs: Mapping[str, Any]) -> None:
        """Adds TRL's log of an optimizer update."""
        if self._is_left_out:
            logs = {**logs, **dict.fromkeys(OF_AN_UPDATE)}
        self._updates.append(
            {
                metric: float(logs[name])
                for name, metric in NATIVE.items()
                if logs.get(name) is not None
            }
        )
        self.count_update(0.0 if self._is_left_out else logs.get("grad_norm"))
        if global_step % self._config.updates_per_rollout:
            return
        step = self._config.rollout_steps(global_step)
        training = finite_means(self._updates)
        now = time.monotonic()
        self.line(
            step, {**self._episodes, **training, **self._start, "time/step_s": now - self._began}
        )
        self._began = now
        self._updates = []
        self._start = {}

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        """Trainer's hook."""
        if logs and "loss" in logs:
            self.update(state.global_step, logs)
