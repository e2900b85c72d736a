"""Sizes, rates and limits of training and of evaluation."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from xp.spec.section import (
    Count,
    CountOrZero,
    Fraction,
    LocalPath,
    NotNegative,
    Number,
    Positive,
    Section,
    Size,
)


class LrSchedule(StrEnum):
    CONSTANT = "constant"
    LINEAR = "linear"
    COSINE = "cosine"


class Optimizer(StrEnum):
    ADAMW = "adamw"
    """Adam with decoupled weight decay (arXiv:1711.05101)."""
    ADAMW_8BIT = "adamw_8bit"
    """The same with both moments in 8 bits, block by block (arXiv:2110.02861)."""
    SGD = "sgd"
    """Stochastic gradient descent without momentum."""


class Reference(StrEnum):
    """Model to which the KL penalty is relative."""

    INITIAL = "initial"
    SFT = "sft"


class Unfinished(StrEnum):
    """Treatment of episodes that are played when the engine is to get new weights."""

    WAIT = "wait"
    """The weights are sent when they have ended, so that one policy has written all of an episode."""
    CONTINUE = "continue"
    """They pause, and go on with the new weights."""


class OnNonfinite(StrEnum):
    """Action on an update whose loss or gradient is infinite or not a number."""

    STOP = "stop"
    SKIP = "skip"


class OnSymptom(StrEnum):
    """Answer to a symptom of a training that goes wrong."""

    OFF = "off"
    WARN = "warn"
    STOP = "stop"


class Sampling(Section):
    """Sampling of an episode's tokens, and the limits of their number."""

    temperature: Positive
    top_p: Annotated[float, Field(gt=0, le=1)]
    top_k: Count | None
    """Number of the likeliest tokens to sample from. None means off."""
    min_p: Fraction
    """Tokens below this share of the likeliest one's probability are not sampled (arXiv:2407.01082). 0 means off."""
    repetition_penalty: Annotated[float, Field(gt=0, le=2)]
    """Logits of tokens that the conversation has are divided by it, negative ones multiplied (arXiv:1909.05858); 1:
    off."""
    max_prompt_tokens: Count
    """Longest prompt, in tokens; tasks with a longer one are excluded and counted."""
    max_tokens_per_turn: Count
    stop: tuple[Annotated[str, Field(min_length=1)], ...]
    """Texts that end a turn, beside the end-of-turn token; they stay in it and are trained on."""
    max_response_tokens: Count
    """Tokens of all turns of an episode together, tool results included."""

    def room(self, num_response: int) -> int:
        """Tokens left for a response that has `num_response` tokens."""
        return self.max_response_tokens - num_response

    def next_turn(self, num_response: int) -> int:
        """Largest number of tokens of the policy's next turn."""
        return min(self.max_tokens_per_turn, self.room(num_response))


class Training(Sampling):
    """Sizes, rates and limits; the defaults come with the model."""

    initial_checkpoint: LocalPath | None
    """Hugging Face directory with the initial weights and tokenizer, of the same architecture; the KL penalty stays
    relative to the model. None: the model's own weights."""
    num_steps: Count | None
    """Rollout steps: batches of fresh episodes. None means as many as `epochs` makes."""
    epochs: Count | None
    """Passes over the training tasks, each of whole steps. None means that `num_steps` are given."""
    prompts_per_step: Size
    """Distinct tasks per rollout step."""
    generation_prompts: Size | None
    """Distinct tasks that a round of algorithm.dynamic_sampling plays, at least prompts_per_step; groups beyond a full
    step are lost. None means prompts_per_step."""
    group_size: Size
    """Episodes per task; GRPO's baseline is their mean."""
    updates_per_step: Size
    """Optimizer updates per pass over a step's episodes."""
    passes_per_step: Size
    """Passes over the same episodes."""
    max_staleness: CountOrZero
    """Largest number of rollout steps between the policy that generated an episode and the policy that is updated with
    it; this many steps are generated while updates run. 0: rollouts and updates take turns."""
    unfinished: Unfinished
    """Treatment of episodes that are played when the engine is to get new weights, with max_staleness above 0: `wait`
    until they have ended, or `continue` them with the new weights, each token with its own policy's log-probability."""
    micro_batch_size: Size
    """Episodes per accelerator in one forward-backward."""
    max_tokens_per_micro_batch: Count | None
    """Episodes are packed up to this number of tokens per accelerator, instead of micro_batch_size. None means off."""
    optimizer: Optimizer
    """Optimizer of the policy, of a fine-tuning too."""
    learning_rate: Positive
    critic_learning_rate: Positive | None
    """Peak learning rate of algorithm.critic, with the same schedule. None means the policy's."""
    lr_schedule: LrSchedule
    min_learning_rate: NotNegative
    """Learning rate to which `lr_schedule` decays, the critic's too; without effect on the warm-up."""
    warmup_updates: CountOrZero
    """Optimizer updates of linear warm-up, N: update k has k/N of the learning rate, so that the first is not 0."""
    weight_decay: NotNegative
    adam_beta1: Annotated[float, Field(ge=0, lt=1)]
    adam_beta2: Annotated[float, Field(ge=0, lt=1)]
    adam_eps: Positive
    max_grad_norm: Positive
    kl_coef: NotNegative
    """Weight of the KL penalty to `reference` (not to initial_checkpoint). 0 means that no reference model is
    loaded."""
    reference: Reference
    """Model of the KL penalty: the initial one, or the fine-tuned one of `sft.data`."""
    reference_every: Count | None
    """Rollout steps between copies of the policy into the reference of the KL penalty. None means that it stays the
    model. A resumed run has the model again until the next copy."""
    entropy_coef: NotNegative
    """Weight of the entropy bonus. 0 means off."""
    max_hours: Positive | None
    """Largest time of the training, all attempts together; it ends after the last checkpoint before (exit code 15).
    None: no limit."""
    budget_usd: Positive | None
    """US dollars after which the training ends with a checkpoint, by `hardware.usd_per_hour`, or by
    `hardware.usd_per_million_tokens`. None means no limit."""
    checkpoint_every: Count
    """Rollout steps between checkpoints; the last step always has one."""
    export_every: Count | None
    """Rollout steps between checkpoints that also get a Hugging Face model, where that is not the checkpoint itself;
    the last step always has one. None means that each checkpoint gets one."""
    keep_checkpoints: Count
    gradient_checkpointing: bool
    shuffle: bool
    """Draws tasks in a random order (by `seed`)."""
    max_void_fraction: Fraction
    """Largest share of void episodes in a step or an evaluation; above it the run stops."""
    # Before the field such an update was applied, which no value of it does.
    on_nonfinite: OnNonfinite
    """Action for an update whose loss or gradient is infinite or not a number: the run stops, or the update is skipped
    (three consecutive rollout steps with such an update still stop the run)."""
    max_logprob_gap: Positive | None
    """Largest mean difference between the engine's and the trainer's log-probabilities of a step's tokens; above it the
    run stops, since the engine then has other weights than the trainer. None: the difference is only recorded."""
    on_symptom: OnSymptom
    """Reaction to a symptom of a failing training (xp.worker.diagnosis): none, a line in the log, or the run's end."""
    deterministic: bool
    """Uses the trainer's and the engine's deterministic kernels, which are slower, so that a run gives the same numbers
    again on the same machine."""

    @property
    def prompts_per_round(self) -> int:
        """Distinct tasks that a round of dynamic sampling plays."""
        return self.generation_prompts or self.prompts_per_step

    @property
    def episodes_per_step(self) -> int:
        """Episodes of a rollout step."""
        return self.prompts_per_step * self.group_size

    @property
    def all_updates_per_step(self) -> int:
        """Optimizer updates of a rollout step, all passes together."""
        return self.updates_per_step * self.passes_per_step

    def faults(self) -> Iterator[str]:
        yield from length_faults("num_steps", self.num_steps, self.epochs)
        if self.prompts_per_round < self.prompts_per_step:
            yield (
                f"generation_prompts must be at least prompts_per_step={self.prompts_per_step}; got"
                f" {self.generation_prompts}"
            )
        if self.export_every is not None and self.export_every % self.checkpoint_every:
            yield (
                f"export_every must be a multiple of checkpoint_every={self.checkpoint_every}; got {self.export_every}"
            )
        rate = min(self.learning_rate, self.critic_learning_rate or self.learning_rate)
        yield from rate_faults(rate, self.min_learning_rate, self.lr_schedule)


def length_faults(name: str, number: int | None, epochs: int | None) -> Iterator[str]:
    """Faults of a number of steps or updates (`name`), which is given unless the epochs are."""
    if (number is None) == (epochs is None):
        both = "are both null" if epochs is None else "exclude each other"
        yield f"{name} and epochs {both}: set one of them, and the other to null"


def rate_faults(peak: float, minimum: float, schedule: LrSchedule) -> Iterator[str]:
    """Faults of a learning rate that decays to a minimum."""
    if minimum and schedule is LrSchedule.CONSTANT:
        yield "min_learning_rate needs lr_schedule=linear or cosine, since constant does not decay; set one, or 0"
    if minimum >= peak:
        yield f"min_learning_rate must be below the learning rate {peak}; got {minimum}"


class Evaluation(Section):
    """Held-out episodes, the same before and after training."""

    num_tasks: Count | None
    """Number of held-out tasks, chosen by a hash of their names. None means all of them."""
    samples_per_task: Count
    """Episodes of each of these tasks."""
    temperature: NotNegative
    """0: greedy."""
    top_p: Annotated[float, Field(gt=0, le=1)]
    top_k: Count | None
    """Number of the likeliest tokens to sample from. None means off."""
    max_tokens_per_turn: Count | None
    """None: training's."""
    max_response_tokens: Count | None
    """Tokens of all turns of an episode together; may be more than training's. None: training's."""
    before_training: bool
    every: Count | None
    """Rollout steps between evaluations during training. None means only before and after it."""
    keep_best: bool
    """Keeps the model of the best evaluation while training as `checkpoints/best`."""
    patience: Count | None
    """Number of consecutive evaluations without a new best after which training stops. None means no early stop."""
    batch_size: Count
    """Episodes played at the same time."""
    pass_threshold: Number
    """Smallest reward that is a pass, in training's `reward/avg_pass_at_n` too."""
