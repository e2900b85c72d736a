"""Engine and trainer give the same tokens different log-probabilities.

Source: the mismatch of rollout and training probabilities is the importance ratio that truncated importance sampling
corrects (Yao et al. 2025, "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training"); far above the
rounding of bfloat16 it means other weights.
"""

from __future__ import annotations

from typing import Final

from xp.diagnosis.history import History, latest
from xp.diagnosis.symptom import Severity, Symptom

LIMIT: Final = 0.1
"""Difference in nats per token; engines with other rounding differ by about 0.01."""
STEPS: Final = 2


def find(history: History) -> Symptom | None:
    gaps = history.series("training/logprob_gap")
    gap = latest(gaps, STEPS)
    if gap is None or gap < LIMIT:
        return None
    return Symptom(
        "engine_gap",
        Severity.BROKEN,
        gaps[-1][0],
        f"engine and trainer differ by {gap:.3f} nats a token",
        "The engine writes with other weights than those that are trained: they are not synchronised.",
        "Set training.max_logprob_gap to stop such a run; try another backend.engine.",
    )
