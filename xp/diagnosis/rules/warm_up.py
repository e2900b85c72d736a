"""The whole run lies within the warm-up of its learning rate.

Source: warm-up raises the rate linearly from 0 over `training.warmup_updates` optimizer updates.
"""

from __future__ import annotations

from typing import Final

from xp.diagnosis.history import History
from xp.diagnosis.symptom import Severity, Symptom

STEPS: Final = 6
SHARE: Final = 0.8


def find(history: History) -> Symptom | None:
    facts = history.facts
    if len(history.lines) < STEPS or not facts.warmup_updates:
        return None
    step = int(history.lines[-1]["step"])
    updates = step * facts.updates_per_step
    if SHARE * updates > facts.warmup_updates:
        return None
    return Symptom(
        "warm_up",
        Severity.ALARM,
        step,
        f"{min(updates, facts.warmup_updates)} of {updates} updates so far belong to the warm-up",
        "The learning rate is still below training.learning_rate.",
        f"Lower training.warmup_updates ({facts.warmup_updates}), or train longer.",
    )
