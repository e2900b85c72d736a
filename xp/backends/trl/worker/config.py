"""Configuration of TRL's stage programs, written by the control plane."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from xp.worker.engines.config import VLLMServer
from xp.worker.sft import SftConfig
from xp.worker.stage import StageConfig, TrainConfig


@dataclass(frozen=True, kw_only=True)
class TRLStageConfig(StageConfig):
    """Fields of both training and fine-tuning."""

    threads_per_process: int
    server: VLLMServer | None
    """Server that generates. None means the training processes."""


@dataclass(frozen=True, kw_only=True)
class TRLTrainConfig(TRLStageConfig, TrainConfig):
    """Input of xp.backends.trl.worker.train, and of xp.backends.trl.worker.launch."""

    num_processes: int
    updates_per_rollout: int
    grpo: Mapping[str, Any]
    """Keyword arguments of trl.GRPOConfig, without the address of a server and, with epochs, `max_steps`."""

    def rollout_steps(self, updates: int) -> int:
        """Number of rollout steps whose updates are all among the first `updates` of the training."""
        return updates // self.updates_per_rollout

    def with_steps(self, steps: int) -> Self:
        """Returns a copy with this number of rollout steps."""
        return replace(
            self, steps=steps, grpo={**self.grpo, "max_steps": steps * self.updates_per_rollout}
        )

    def with_patience(self, seconds: int) -> TRLTrainConfig:
        """Returns a copy with more time for a rank that waits at a collective."""
        return replace(self, grpo={**self.grpo, "ddp_timeout": self.grpo["ddp_timeout"] + seconds})


@dataclass(frozen=True, kw_only=True)
class TRLSftConfig(TRLStageConfig, SftConfig):
    """Input of xp.backends.trl.worker.sft."""

    arguments: Mapping[str, Any]
    """Keyword arguments of trl.SFTConfig."""
