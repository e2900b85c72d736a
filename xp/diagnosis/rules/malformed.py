"""Tool calls that cannot be parsed.

Source: xp.episode.dialects; a model writes calls in the format of its chat template, another format is malformed.
"""

from __future__ import annotations

from typing import Final

from xp.diagnosis.history import History, change
from xp.diagnosis.symptom import Severity, Symptom

MANY: Final = 0.3
FALL: Final = 0.1


def find(history: History) -> Symptom | None:
    points = history.series("episodes/malformed")
    found = change(points)
    if found is None or found.after < MANY or found.by < -FALL:
        return None
    return Symptom(
        "malformed",
        Severity.ALARM,
        points[-1][0],
        f"{found.after:.0%} of the episodes hold a tool call that cannot be read",
        "The dialect is not the one that the model writes, or a turn is cut within a call.",
        "Check model.dialect, and training.max_tokens_per_turn.",
    )
