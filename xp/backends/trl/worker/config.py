"""Configuration of TRL's stage programs: frozen values, written by render above the wall. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from xp.tasks.length import Length
from xp.tasks.rounds import Rounds
from xp.worker.best import BestRule
from xp.worker.stage import EvaluateConfig, Sampling, StageConfig, TrainConfig


@dataclass(frozen=True)
class TRLSampling(Sampling):
    """With what ends a turn."""

    stop: tuple[str, ...] = ()
    """Texts that end a turn, beside the end-of-turn token."""


@dataclass(frozen=True)
class VLLMServer:
    """A vLLM server that a stage starts for itself, and stops."""

    arguments: tuple[str, ...]
    """Arguments of `vllm serve` after the model, without address and port."""
    num_accelerators: int
    """The last so many of the stage's are the server's."""
    start_timeout_s: float
    """Seconds from the server's start to its first answer: it loads weights and compiles."""
    patience_s: float
    """Seconds that its health check may stay without an answer while it is used."""


@dataclass(frozen=True)
class Lora:
    """Low-rank adapters, in place of full training."""

    rank: int
    alpha: float
    dropout: float
    target_modules: tuple[str, ...] | None
    """None: every linear layer but the head."""


@dataclass(frozen=True)
class TRLStageConfig(StageConfig):
    """Fields that training and evaluation share."""

    num_threads: int
    """Threads of one process."""
    dtype: str
    """Computed in."""
    sampling: TRLSampling
    server: VLLMServer | None
    """Server that generates; None: the training processes, or the evaluation itself."""


@dataclass(frozen=True)
class During:
    """Evaluation while training."""

    every: int
    """Rollout steps between two."""
    rounds: Rounds
    batch_size: int
    """Episodes played at the same time, over all ranks."""
    sampling: TRLSampling
    wave_size: int
    """Episodes that one process plays at the same time."""
    wave_s: int
    """Seconds that such a wave may take; the other ranks wait for it at a collective."""
    best: BestRule | None


@dataclass(frozen=True)
class TRLTrainConfig(TrainConfig):
    """Input of xp.backends.trl.worker.train, and of xp.backends.trl.worker.launch."""

    common: TRLStageConfig
    num_processes: int
    updates_per_rollout: int
    lora: Lora | None
    during: During | None
    """None: held-out tasks are played before and after training alone."""
    grpo: Mapping[str, Any]
    """Keyword arguments of trl.GRPOConfig, complete but for the address of a server and, with epochs, `max_steps`."""

    def with_length(self, length: Length) -> TRLTrainConfig:
        """Returns a copy with this number of rollout steps."""
        return replace(self, length=length, grpo={**self.grpo, "max_steps": length.steps * self.updates_per_rollout})


@dataclass(frozen=True)
class TRLEvaluateConfig(EvaluateConfig):
    """Input of xp.backends.trl.worker.evaluate."""

    common: TRLStageConfig
    batch_size: int
    """Episodes played at the same time."""
