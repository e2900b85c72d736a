"""An increasing share of episodes ends at a limit of turns or tokens.

Source: truncated episodes are scored as failures, even good ones (Yu et al. 2025, arXiv:2503.14476,
section 3.4, "overlong reward shaping").
"""

from __future__ import annotations

from typing import Final

from xp.diagnosis.history import History, change
from xp.diagnosis.symptom import Severity, Symptom

MANY: Final = 0.5
RISE: Final = 0.2


def find(history: History) -> Symptom | None:
    found = change(history.series("episodes/truncated"))
    if found is None or (found.after < MANY and found.by < RISE):
        return None
    if found.after < MANY / 2 or found.by < -RISE:
        return None
    return Symptom(
        "truncation",
        Severity.ALARM,
        found.step,
        f"{found.after:.0%} of the episodes end at a limit, after {found.before:.0%} at the beginning",
        "The policy writes more than it may, or does not come to an end.",
        "Raise training.max_tokens_per_turn, training.max_response_tokens or env.max_turns.",
    )
