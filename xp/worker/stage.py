"""Input of all trainers' stage programs; a trainer's own fields are in a subclass beside its programs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from xp.diagnosis.live import LiveRules
from xp.envs.config import Chat
from xp.episode.rewards import Overlong
from xp.lib.codec import JsonFile
from xp.tasks.training_length import Length
from xp.worker.best import BestRule
from xp.worker.distill import Distillation
from xp.worker.time_limit import TimeLimit
from xp.worker.token_budget import TokenBudget

BEFORE: Final = "before"
AFTER: Final = "after"
"""Names of the untrained and the trained model in an evaluation."""


@dataclass(frozen=True)
class Sampling(TokenBudget):
    """Sampling of the policy's tokens, and limits of their number."""

    temperature: float
    """Sampling temperature; 0: greedy."""
    top_p: float
    top_k: int | None
    seed: int
    stop: tuple[str, ...] = ()
    """Strings that end a turn, in addition to the end-of-turn token."""
    min_p: float = 0.0
    """Smallest probability of a token that is drawn, as a share of the likeliest one's."""
    repetition_penalty: float = 1.0
    """Divisor of the logits of tokens that the conversation has; a factor of negative ones."""

    @property
    def evaluation_seed(self) -> str:
        """Seed of an evaluation of a whole model, which plays the same episodes wherever it is played."""
        return f"{self.seed}/evaluate"


@dataclass(frozen=True)
class StageConfig:
    """Fields of both training and evaluation. Paths are relative to the outputs root, the working directory."""

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
    """Largest gap of a step (xp.worker.step_log); None: no limit."""
    upload_as: str | None
    """Run name under which trajectories are uploaded to OpenReward; None: they are not."""


@dataclass(frozen=True)
class TrainConfig(JsonFile):
    """Input of a training program."""

    common: StageConfig
    base_model: str
    """Hugging Face id or directory of the model, which is the reference of the KL penalty."""
    initial_checkpoint: str | None
    """Directory with the initial weights and tokenizer; None: those of `base_model`."""
    evaluation: str | None
    """The evaluate stage's config, whose held-out tasks this stage plays too; None: nothing is held out."""
    model_dir: str
    """Directory of the trained model, in Hugging Face's format."""
    length: Length
    prompts_per_step: int
    group_size: int
    max_staleness: int
    """Largest number of rollout steps that are played ahead of the updates."""
    shuffle: bool
    """True draws tasks in a random order; xp computes the order for every trainer."""
    mask_truncated: bool
    dynamic_sampling: bool
    """True replaces groups without variance by groups of the next tasks."""
    zero_variance_filter: bool
    """True leaves groups without variance out of the loss."""
    overlong: Overlong | None
    """Penalty for length; None: none."""
    best: BestRule | None
    """Rule for the evaluations during training; None: none."""
    every: int | None
    """Rollout steps between two evaluations; None: only before and after the training."""
    distill: Distillation | None
    """Settings of on-policy distillation, or None."""
    symptoms: LiveRules
    time_limit: TimeLimit | None

    @property
    def start_model(self) -> str:
        """Directory or id of the model with the initial weights."""
        return self.initial_checkpoint or self.base_model

    @property
    def num_steps(self) -> int:
        """Rollout steps; must be called only if they are given or computed."""
        return self.length.steps
