"""What TRL's stage programs read: frozen values written by render above the wall, standard library only."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Sampling:
    """How the policy writes."""

    temperature: float
    """0: greedy."""
    top_p: float
    top_k: int | None
    max_prompt_tokens: int
    max_tokens_per_turn: int
    max_response_tokens: int
    """All turns of an episode, tool results included."""
    seed: int


@dataclass(frozen=True)
class Common:
    """What training and evaluation share. Paths are relative to the outputs root, the working directory."""

    attempt: int
    run: str
    stage_dir: str
    tasks: str
    """Directory of the canonical task set."""
    metrics: str
    """The run's metrics.jsonl."""
    num_threads: int
    dtype: str
    chat_template: Mapping[str, Any]
    """Arguments of the chat template."""
    sampling: Sampling
    max_void_fraction: float
    upload_as: str | None
    """Run name under which trajectories are uploaded to OpenReward; None: they are not."""


@dataclass(frozen=True)
class TrainConfig:
    """Input of xp.backends.trl.train."""

    common: Common
    base_model: str
    model_dir: str
    """Where the trained model goes, as a Hugging Face directory."""
    num_steps: int
    prompts_per_step: int
    group_size: int
    updates_per_rollout: int
    shuffle: bool
    mask_truncated: bool
    grpo: Mapping[str, Any]
    """Keyword arguments of trl.GRPOConfig, complete."""

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2) + "\n"

    @staticmethod
    def from_json(text: str) -> TrainConfig:
        value = json.loads(text)
        return TrainConfig(**value | {"common": _common(value["common"])})


@dataclass(frozen=True)
class EvaluateConfig:
    """Input of xp.backends.trl.evaluate."""

    common: Common
    models: Mapping[str, str]
    """`before` and `after` -> model directory, in the order in which they are played."""
    curve: str
    """Where the reward curve goes (PNG)."""
    num_episodes: int
    batch_size: int
    """Episodes played at the same time."""

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2) + "\n"

    @staticmethod
    def from_json(text: str) -> EvaluateConfig:
        value = json.loads(text)
        return EvaluateConfig(**value | {"common": _common(value["common"])})


def _common(value: dict[str, Any]) -> Common:
    return Common(**value | {"sampling": Sampling(**value["sampling"])})
