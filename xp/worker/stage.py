"""Input of the stage programs of every trainer; a trainer's own fields are in a subclass beside its programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from xp.codec import JsonFile
from xp.diagnosis.live import LiveRules
from xp.envs.config import Chat
from xp.tasks.length import Length
from xp.tasks.rounds import Rounds
from xp.worker.curriculum import Refresh
from xp.worker.token_budget import TokenBudget


@dataclass(frozen=True)
class Sampling(TokenBudget):
    """Sampling of the policy's tokens, and limits of their number."""

    temperature: float
    """0: greedy."""
    top_p: float
    top_k: int | None
    seed: int


@dataclass(frozen=True)
class StageConfig:
    """Fields that training and evaluation share. Paths are relative to the outputs root, the working directory."""

    attempt: int
    run: str
    stage_dir: str
    tasks: str
    """Directory of the canonical task set."""
    metrics: str
    """The run's metrics.jsonl."""
    chat: Chat
    max_void_fraction: float
    pass_threshold: float
    """Smallest reward that is a pass."""
    on_nonfinite: str
    """A value of xp.episode.finite.OnNonfinite."""
    max_logprob_gap: float | None
    """Largest gap of a step (xp.worker.logprob_gap); None: no limit."""
    upload_as: str | None
    """Run name under which trajectories are uploaded to OpenReward; None: they are not."""


@dataclass(frozen=True)
class TrainConfig(JsonFile):
    """Input of a training program."""

    common: StageConfig
    base_model: str
    """Hugging Face id or directory of the model; what the KL penalty is relative to."""
    initial_checkpoint: str | None
    """Directory whose weights and tokenizer training starts from; None: those of `base_model`."""
    model_dir: str
    """Directory of the trained model, in Hugging Face's format."""
    length: Length
    prompts_per_step: int
    group_size: int
    max_staleness: int
    """Rollout steps that are played ahead of the updates, at most."""
    shuffle: bool
    """True: a random order of tasks. The order is xp's on every trainer."""
    mask_truncated: bool
    symptoms: LiveRules
    refresh: Mapping[str, Refresh]
    """Environment -> rule by which its tasks are selected anew; empty: the order of the tasks is fixed."""

    @property
    def start_model(self) -> str:
        """Model that training starts from."""
        return self.initial_checkpoint or self.base_model

    @property
    def num_steps(self) -> int:
        """Rollout steps; call only where they are given or settled."""
        return self.length.steps


@dataclass(frozen=True)
class EvaluateConfig(JsonFile):
    """Input of an evaluation program."""

    common: StageConfig
    models: Mapping[str, str]
    """`before` and `after` -> Hugging Face id or directory, in the order in which they are played."""
    rounds: Rounds
