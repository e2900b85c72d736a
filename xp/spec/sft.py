"""Supervised fine-tuning on episodes, before the training or instead of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, Final

from pydantic import AfterValidator, Field

from xp.lib.data_files import HUB
from xp.spec.section import (
    Count,
    CountOrZero,
    NotNegative,
    Number,
    OpenKeys,
    Positive,
    Section,
    Size,
)
from xp.spec.training import LrSchedule, length_faults, rate_faults

SOLVE: Final = "solve"
RUN: Final = "run"
EVAL: Final = "eval"
_FORMS: Final = re.compile(
    rf"{SOLVE}(:[A-Za-z_][\w.]*:[A-Za-z_][\w.]*)?|{RUN}:[\w.@+-]+|{EVAL}:[\w.@+-]+|{HUB}.+|.*\.(jsonl?|parquet)"
    r"|(/|\./|\.\./|~).+",
    re.DOTALL,
)


def _source(value: str) -> str:
    if not _FORMS.fullmatch(value):
        raise ValueError(
            f"{value!r} is no source of episodes: write solve (the environment's own `solve`), solve:module:function,"
            " run:RUN, eval:ID, a file of messages (FILE.jsonl, .json, .parquet), or a data set of them (hf:ORG/NAME,"
            " ./DIRECTORY)"
        )
    return value


class Thinking(StrEnum):
    """Treatment of an episode's text between <think> tags."""

    KEEP = "keep"
    CUT = "cut"


class LossOn(StrEnum):
    """Tokens of an episode that are trained on."""

    TURNS = "turns"
    """All turns of the policy."""
    LAST_TURN = "last_turn"
    ALL = "all"
    """All tokens, those of the prompt and the environment too."""


class LongDialogues(StrEnum):
    """Treatment of an episode with more than `sft.max_tokens` tokens."""

    LEAVE_OUT = "leave_out"
    CUT = "cut"


class Sft(Section):
    """Supervised fine-tuning; the defaults come with the model. Optimizer settings that it lacks are training's."""

    data: Annotated[str, AfterValidator(_source)] | None
    """Source of the episodes. None means that there is no fine-tuning."""
    min_reward: Number | None
    """Smallest reward of an episode that is trained on. None means `evaluation.pass_threshold`."""
    per_task: Count | None
    """Largest number of episodes of a task, those with the highest reward. None means all."""
    num_episodes: Count | None
    """Largest number of episodes, drawn by `seed`; for `solve` the number of tasks that are played. None: all."""
    thinking: Thinking
    loss_on: LossOn
    max_tokens: Count | None
    """Largest number of tokens of an episode, with the prompt. None means the limits of prompts, turns and responses in
    training."""
    too_long: LongDialogues
    """Treatment of a longer episode; `cut` keeps its first `max_tokens` tokens."""
    epochs: Count | None
    """Passes over the episodes. None means that `num_updates` are given."""
    num_updates: Count | None
    """Optimizer updates. None means as many as `epochs` makes."""
    batch_size: Size
    """Episodes per optimizer update."""
    micro_batch_size: Size
    """Episodes per accelerator in one forward-backward."""
    max_tokens_per_micro_batch: Count | None
    """Token budget per accelerator to which episodes are packed, instead of `micro_batch_size`. None means off."""
    learning_rate: Positive
    lr_schedule: LrSchedule
    min_learning_rate: NotNegative
    """Learning rate to which `lr_schedule` decays."""
    warmup_updates: CountOrZero
    """Optimizer updates of linear warm-up."""
    checkpoint_every: Count
    """Optimizer updates between checkpoints."""
    held_out_fraction: Annotated[float, Field(ge=0, le=0.5)]
    """Fraction of the episodes' tasks held out for the validation loss, which is measured before and after."""
    overrides: OpenKeys
    """Native keys of the trainer for this stage, passed through: of SFTConfig on TRL and SkyRL, flags of Slime."""

    def faults(self) -> Iterator[str]:
        yield from length_faults("num_updates", self.num_updates, self.epochs)
        if self.too_long is LongDialogues.CUT and self.max_tokens is None:
            yield "too_long=cut needs max_tokens, after which an episode is cut"
        yield from rate_faults(self.learning_rate, self.min_learning_rate, self.lr_schedule)
