"""Configuration of TRL's stage programs: frozen values, written by render above the wall. Standard library only."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from xp.diagnosis.live import LiveRules
from xp.envs.config import Chat
from xp.tasks.length import Length
from xp.tasks.rounds import Rounds
from xp.worker.best import BestRule


@dataclass(frozen=True)
class TRLSampling:
    """Sampling parameters of the policy."""

    temperature: float
    """0: greedy."""
    top_p: float
    top_k: int | None
    max_prompt_tokens: int
    max_tokens_per_turn: int
    max_response_tokens: int
    """All turns of an episode, tool results included."""
    seed: int
    stop: tuple[str, ...] = ()
    """Texts that end a turn, beside the end-of-turn token."""

    @staticmethod
    def from_value(value: Mapping[str, Any]) -> TRLSampling:
        """Reads the result of `dataclasses.asdict`."""
        return TRLSampling(**{**value, "stop": tuple(value["stop"])})


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
class TRLStageConfig:
    """Configuration that training and evaluation share. Paths are relative to the working directory (the outputs)."""

    attempt: int
    run: str
    stage_dir: str
    tasks: str
    """Directory of the canonical task set."""
    metrics: str
    """The run's metrics.jsonl."""
    num_threads: int
    """Threads of one process."""
    dtype: str
    """Computed in."""
    chat: Chat
    sampling: TRLSampling
    max_void_fraction: float
    pass_threshold: float
    """Smallest reward that is a pass."""
    on_nonfinite: str
    """A value of xp.episode.finite.OnNonfinite."""
    max_logprob_gap: float | None
    """Largest allowed gap of a step (xp.worker.logprob_gap)."""
    upload_as: str | None
    """Run name under which trajectories are uploaded to OpenReward; None: they are not."""
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
class TRLTrainConfig:
    """Input of xp.backends.trl.worker.train, and of xp.backends.trl.worker.launch."""

    common: TRLStageConfig
    base_model: str
    """Hugging Face id or directory of the model; what the KL penalty is relative to."""
    initial_checkpoint: str | None
    """Directory whose weights and tokenizer training starts from; None: those of `base_model`."""
    model_dir: str
    """Directory of the trained model, in Hugging Face's format."""
    num_processes: int
    length: Length
    prompts_per_step: int
    group_size: int
    updates_per_rollout: int
    shuffle: bool
    mask_truncated: bool
    lora: Lora | None
    during: During | None
    """None: held-out tasks are played before and after training alone."""
    symptoms: LiveRules
    grpo: Mapping[str, Any]
    """Keyword arguments of trl.GRPOConfig, complete but for the address of a server and, with epochs, `max_steps`."""

    @property
    def start_model(self) -> str:
        """Model that training starts from."""
        return self.initial_checkpoint or self.base_model

    @property
    def num_steps(self) -> int:
        """Rollout steps; call only where they are given or settled."""
        return self.length.steps

    def with_length(self, length: Length) -> TRLTrainConfig:
        """Returns a copy with this number of rollout steps."""
        return replace(self, length=length, grpo={**self.grpo, "max_steps": length.steps * self.updates_per_rollout})

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2) + "\n"

    @staticmethod
    def from_json(text: str) -> TRLTrainConfig:
        value = json.loads(text)
        lora, during = value["lora"], value["during"]
        parts = {
            "common": _common(value["common"]),
            "length": Length(**value["length"]),
            "lora": None if lora is None else _lora(lora),
            "during": None if during is None else _during(during),
            "symptoms": LiveRules.from_value(value["symptoms"]),
        }
        return TRLTrainConfig(**value | parts)


@dataclass(frozen=True)
class TRLEvaluateConfig:
    """Input of xp.backends.trl.worker.evaluate."""

    common: TRLStageConfig
    models: Mapping[str, str]
    """`before` and `after` -> model directory, in the order in which they are played."""
    rounds: Rounds
    batch_size: int
    """Episodes played at the same time."""

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2) + "\n"

    @staticmethod
    def from_json(text: str) -> TRLEvaluateConfig:
        value = json.loads(text)
        return TRLEvaluateConfig(**value | {"common": _common(value["common"]), "rounds": Rounds(**value["rounds"])})


def _common(value: dict[str, Any]) -> TRLStageConfig:
    server = value["server"]
    if server is not None:
        server = VLLMServer(**server | {"arguments": tuple(server["arguments"])})
    parts = {
        "sampling": TRLSampling.from_value(value["sampling"]),
        "server": server,
        "chat": Chat.from_value(value["chat"]),
    }
    return TRLStageConfig(**value | parts)


def _during(value: dict[str, Any]) -> During:
    parts = {
        "sampling": TRLSampling.from_value(value["sampling"]),
        "rounds": Rounds(**value["rounds"]),
        "best": None if value["best"] is None else BestRule(**value["best"]),
    }
    return During(**value | parts)


def _lora(value: dict[str, Any]) -> Lora:
    modules = value["target_modules"]
    return Lora(**value | {"target_modules": None if modules is None else tuple(modules)})
