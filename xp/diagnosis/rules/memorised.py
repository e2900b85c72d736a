"""The training reward rises and the held-out reward does not: the training tasks are memorised.

Source: the usual sign of overfitting; Cobbe et al. 2018 (arXiv:1812.02341) measure it in reinforcement learning.
"""

from __future__ import annotations

from statistics import fmean
from typing import Final

from xp.diagnosis.history import History, change
from xp.diagnosis.symptom import Severity, Symptom

RISE: Final = 0.15
FLAT: Final = 0.02
LEAST: Final = 0.2
"""Smallest rise of the held-out reward, as a share of the training reward's rise. It has no source: a policy with a
single training task still learns the rules of the game, so that its held-out reward rises a little."""
FEWEST_EVALUATIONS: Final = 4


def find(history: History) -> Symptom | None:
    trained = change(history.series("reward/avg_raw_reward"))
    held_out = history.held_out("reward/avg_raw_reward")
    if trained is None or trained.by < RISE or len(held_out) < FEWEST_EVALUATIONS:
        return None
    half = len(held_out) // 2
    early, late = (fmean(value for _, value in part) for part in (held_out[:half], held_out[-half:]))
    if late - early > max(FLAT, LEAST * trained.by):
        return None
    return Symptom(
        "memorised",
        Severity.ALARM,
        held_out[-1][0],
        f"the training reward rose by {trained.by:.3f}, the held-out reward from {early:.3f} to {late:.3f}",
        "The training tasks are learned by heart, or differ from the held-out ones.",
        "Train on more tasks (env.train.num_tasks), or stop earlier (evaluation.keep_best, evaluation.patience).",
    )
