"""The mean reward fell by more than half of its best, below where training began.

Source: several steps along the policy gradient of the same episodes often destroy the policy (Schulman et al. 2017,
arXiv:1707.06347, section 2.1); the limits are measured on recorded runs. That the reward is below the beginning is held
against the usual difference between two steps, which is the chance of their tasks and samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean, median
from typing import Final

from xp.diagnosis.history import History
from xp.diagnosis.symptom import Severity, Symptom

STEPS: Final = 5
"""Number of steps whose mean is one value."""
TIMES: Final = 3.0
"""Multiple of the usual difference between two steps; a reward that is rare and stays so is then seldom named."""
SHARE: Final = 0.5
"""Share of the best mean, by which the last is below it."""


def find(history: History) -> Symptom | None:
    points = history.series("reward/avg_raw_reward")
    if len(points) < 2 * STEPS:
        return None
    rewards = [reward for _, reward in points]
    means = [fmean(rewards[at : at + STEPS]) for at in range(len(rewards) - STEPS + 1)]
    best = max(range(len(means)), key=means.__getitem__)
    last, chance = means[-1], TIMES * _usual_difference(rewards[: best + STEPS])
    if last >= means[0] - chance or last >= means[best] - SHARE * abs(means[best]):
        return None
    return Symptom(
        "collapse",
        Severity.ALARM,
        points[-1][0],
        f"the mean reward is {last:.3f}, after {means[best]:.3f} at step {points[best + STEPS - 1][0]} and"
        f" {means[0]:.3f} at the beginning",
        "An update was too large for the policy, which does not write what it is paid for any more.",
        "Begin again from a checkpoint before the fall (training.initial_checkpoint), with a lower"
        " training.learning_rate, training.max_grad_norm or training.max_staleness, or a training.kl_coef above 0.",
    )


def _usual_difference(rewards: Sequence[float]) -> float:
    return median(abs(after - before) for before, after in pairwise(rewards))
