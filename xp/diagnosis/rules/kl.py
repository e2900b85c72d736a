"""The policy moves far from the reference model.

Source: the KL estimate of Schulman, "Approximating KL Divergence" (2020); GRPO runs stay below about 0.1 nats per
token, far above it the text degenerates (Gao et al. 2022, arXiv:2210.10760, on over-optimisation by KL).
"""

from __future__ import annotations

from statistics import median
from typing import Final

from xp.diagnosis.history import EARLY, FEWEST, History, latest
from xp.diagnosis.symptom import Severity, Symptom

LARGE: Final = 1.0
"""KL in nats per token: ten times the 0.1 above."""
TIMES: Final = 10.0
"""Multiple of the first steps' value; it is small, since the policy starts as the reference."""
STEPS: Final = 3


def find(history: History) -> Symptom | None:
    points = history.series("training/kl")
    last = latest(points, STEPS)
    if last is None or len(points) < FEWEST or last < LARGE:
        return None
    # Not over all earlier steps: a policy that moved away early is far away in most of them.
    usual = median(value for _, value in points[: len(points) // EARLY])
    if last < TIMES * max(usual, 0.0):
        return None
    return Symptom(
        "kl",
        Severity.ALARM,
        points[-1][0],
        f"the KL to the reference model is {last:.2f} nats a token, after {usual:.3f} at the beginning",
        "The updates are too large for what the KL penalty holds back.",
        "Lower training.learning_rate, or raise training.kl_coef.",
    )
