"""Metrics of Slime's training: Slime's names for them, and how xp measures the others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from xp.worker.step_log import MEASURED as OF_EVERY_TRAINER

OF_CRITIC: Final = "train/critic-"
NATIVE: Final[Mapping[str, str]] = {
    "train/loss": "training/loss",
    "train/pg_loss": "training/policy_loss",
    "train/kl_loss": "training/kl",
    "train/entropy_loss": "training/entropy",
    "train/pg_clipfrac": "training/clip_fraction",
    "train/grad_norm": "training/grad_norm",
    "train/lr-pg_0": "training/learning_rate",
    "train/train_rollout_logprob_abs_diff": "training/logprob_gap",
    "train/critic-value_loss": "training/value_loss",
    "train/critic-value_clipfrac": "training/value_clip_fraction",
    "train/critic-grad_norm": "training/critic_grad_norm",
    "train/critic-lr-pg_0": "training/critic_learning_rate",
}
"""Slime's name -> xp's."""
RATE: Final = "lr-pg_0"
"""End of the names of learning rates: of Megatron's first group of parameters, as all groups have the same."""
LOSSES: Final = ("train/loss", "train/pg_loss", "train/critic-value_loss")
"""Names of the values that `algorithm.loss_aggregation` aggregates."""
NOT_MEANS: Final = ("grad_norm", RATE)
"""Ends of the names whose values are not means over an update's episodes or tokens."""
OF_WEIGHTS: Final = tuple(
    f"train/importance_{name}" for name in ("tokens", "outside", "weights", "squares")
)
"""Slime's names for what xp's function of the importance weights reports."""
MEASURED: Final = OF_EVERY_TRAINER | {
    "training/staleness": "only with `training.max_staleness`",
    "episodes/groups_left_out": "only with dynamic sampling",
    "time/step_s": "",
}
"""Metrics that xp measures itself -> a remark."""
