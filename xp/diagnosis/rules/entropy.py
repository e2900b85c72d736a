"""The policy's entropy collapses before it has learned.

Source: "The Entropy Mechanism of Reinforcement Learning for Reasoning Language Models" (Cui et al. 2025,
arXiv:2505.22617): without entropy the reward does not rise further.
"""

from __future__ import annotations

from typing import Final

from xp.diagnosis.history import History, change
from xp.diagnosis.rules.saturated import is_saturated
from xp.diagnosis.symptom import Severity, Symptom

LEFT: Final = 0.2
"""Share of the first steps' entropy below which it has collapsed."""
SMALL: Final = 0.05
"""Entropy in nats per token below which it has collapsed."""
GAIN: Final = 0.05


def find(history: History) -> Symptom | None:
    entropy, reward = change(history.series("training/entropy")), change(history.series("reward/avg_raw_reward"))
    if entropy is None or reward is None or reward.by > GAIN or is_saturated(history):
        return None
    if entropy.before <= 0 or entropy.after > min(SMALL, LEFT * entropy.before):
        return None
    return Symptom(
        "entropy",
        Severity.ALARM,
        entropy.step,
        f"the entropy fell from {entropy.before:.3f} to {entropy.after:.4f} nats a token, and the reward did not rise"
        f" ({reward.before:.3f} to {reward.after:.3f})",
        "The policy writes the same again and again, so that it finds nothing better.",
        "Lower training.learning_rate, raise training.temperature, training.entropy_coef or algorithm.clip_high.",
    )
