"""Metrics of SkyRL's training: SkyRL's names for them, and how xp measures the others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from xp.worker.step_log import MEASURED as MEASURED

GAP: Final = "policy/rollout_train_logprobs_abs_diff_mean"
"""SkyRL's mean over the tokens of a step, of its forward before the first update."""
AGE: Final = "async/staleness_mean"
"""SkyRL's mean over the groups of a step, of its fully asynchronous trainer."""
NATIVE: Final[Mapping[str, str]] = {
    "policy/final_loss": "training/loss",
    "policy/grad_norm": "training/grad_norm",
    "policy/policy_lr": "training/learning_rate",
    "policy/policy_kl": "training/kl",
    "policy/policy_entropy": "training/entropy",
    "policy/loss_metrics/clip_ratio": "training/clip_fraction",
    GAP: "training/logprob_gap",
    AGE: "training/staleness",
    "critic/critic_loss": "training/value_loss",
    "critic/grad_norm": "training/critic_grad_norm",
    "critic/values_mean": "training/value",
    "critic/values_clipfrac": "training/value_clip_fraction",
    "critic/critic_lr": "training/critic_learning_rate",
    "timing/step": "time/step_s",
    "timing/fwd_logprobs_values_reward": "time/logprobs_s",
    "timing/train_critic_and_policy": "time/update_s",
    "timing/sync_weights": "time/weight_sync_s",
    "timing/save_checkpoints": "time/checkpoint_s",
    "timing/save_hf_model": "time/export_s",
}
"""SkyRL's name -> xp's."""
