"""Nearly every episode has the full reward.

Source: a group whose episodes all succeed has no advantage (Yu et al. 2025, arXiv:2503.14476, section 3.2).
"""

from __future__ import annotations

from typing import Final

from xp.diagnosis.history import History, latest
from xp.diagnosis.symptom import Severity, Symptom

FULL: Final = 0.95
STEPS: Final = 4
EQUAL: Final = 0.8


def is_saturated(history: History) -> bool:
    """Returns whether tasks pass and all episodes of a task have equal rewards."""
    passes, equal = latest(history.passes(), STEPS), latest(history.series("reward/groups_without_variance"), STEPS)
    return passes is not None and equal is not None and passes >= FULL and equal >= EQUAL


def find(history: History) -> Symptom | None:
    if not is_saturated(history):
        return None
    passes = history.passes()
    return Symptom(
        "saturated",
        Severity.NOTE,
        passes[-1][0],
        f"{latest(passes, STEPS) or 0:.0%} of the tasks pass, with the same reward in all their episodes",
        "The tasks are too easy for this policy.",
        "Stop here, or add harder tasks (env.train).",
    )
