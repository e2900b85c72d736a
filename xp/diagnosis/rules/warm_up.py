"""Nearly the whole run is within the warm-up of its learning rate.

Source: xp.worker.learning_rate; update k of a warm-up of N has k/N of the rate.
"""

from __future__ import annotations

from typing import Final

from xp.diagnosis.history import History
from xp.diagnosis.symptom import Severity, Symptom

SHARE: Final = 0.8
"""Share of the run's updates above which a warm-up is too long."""


def find(history: History) -> Symptom | None:
    facts = history.facts
    if not history.lines or facts.num_updates is None or facts.warmup_updates < SHARE * facts.num_updates:
        return None
    return Symptom(
        "warm_up",
        Severity.ALARM,
        int(history.lines[-1]["step"]),
        f"{min(facts.num_updates, facts.warmup_updates)} of {facts.num_updates} updates of the run are warm-up",
        "Their learning rate is below training.learning_rate.",
        f"Lower training.warmup_updates ({facts.warmup_updates}), or train longer.",
    )
