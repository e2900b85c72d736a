"""Configuration of TRL's stage programs, written by the control plane. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from xp.engines.config import VLLMServer
from xp.tasks.training_length import Length
from xp.worker.importance import Importance
from xp.worker.sft import SftConfig
from xp.worker.stage import Sampling, StageConfig, TrainConfig


@dataclass(frozen=True)
class Lora:
    """Low-rank adapters, instead of full training."""

    rank: int
    alpha: float
    dropout: float
    target_modules: tuple[str, ...] | None
    """Names of the layers with adapters; None: every linear layer but the head."""


@dataclass(frozen=True)
class TRLStageConfig(StageConfig):
    """Fields of both training and fine-tuning."""

    num_threads: int
    """Number of threads of one process."""
    dtype: str
    """Data type of the computation."""
    sampling: Sampling
    server: VLLMServer | None
    """Server that generates; None: the training processes."""


@dataclass(frozen=True)
class TRLTrainConfig(TrainConfig):
    """Input of xp.backends.trl.worker.train, and of xp.backends.trl.worker.launch."""

    common: TRLStageConfig
    num_processes: int
    updates_per_rollout: int
    lora: Lora | None
    importance: Importance | None
    """Importance correction; None: none."""
    ratio_from: str
    """A spec's `algorithm.ratio_from`."""
    grpo: Mapping[str, Any]
    """Keyword arguments of trl.GRPOConfig, without the address of a server and, with epochs, `max_steps`."""

    def with_length(self, length: Length) -> TRLTrainConfig:
        """Returns a copy with this number of rollout steps."""
        return replace(self, length=length, grpo={**self.grpo, "max_steps": length.steps * self.updates_per_rollout})

    def with_patience(self, seconds: int) -> TRLTrainConfig:
        """Returns a copy with more time for a rank that waits at a collective."""
        return replace(self, grpo={**self.grpo, "ddp_timeout": self.grpo["ddp_timeout"] + seconds})


@dataclass(frozen=True)
class TRLSftConfig(SftConfig):
    """Input of xp.backends.trl.worker.sft."""

    common: TRLStageConfig
    lora: Lora | None
    arguments: Mapping[str, Any]
    """Keyword arguments of trl.SFTConfig."""
