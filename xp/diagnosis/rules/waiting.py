"""A step waits mostly for tools instead of the model.

Source: `env_s` of the trajectories, the environment's seconds in each turn.
"""

from __future__ import annotations

from typing import Final

from xp.diagnosis.history import FEWEST, History
from xp.diagnosis.symptom import Severity, Symptom

MOST: Final = 0.5


def find(history: History) -> Symptom | None:
    tools = history.tools
    if tools is None or tools.waiting_share is None or tools.waiting_share < MOST or len(history.lines) < FEWEST:
        return None
    return Symptom(
        "waiting",
        Severity.NOTE,
        int(history.lines[-1]["step"]),
        f"{tools.waiting_share:.0%} of the episodes' time is the environment's",
        "The tools are slower than the model that calls them.",
        "Raise env.limits.max_sessions if the server can take more, or run it nearer (python -m xp env check).",
    )
