"""One tool is never called, but others are.

Source: counted over the trajectories; a policy that never uses a tool cannot learn when to use it.
"""

from __future__ import annotations

from typing import Final

from xp.diagnosis.history import History
from xp.diagnosis.symptom import Severity, Symptom

FEWEST_EPISODES: Final = 100


def find(history: History) -> Symptom | None:
    tools = history.tools
    if tools is None or tools.num_episodes < FEWEST_EPISODES or not tools.num_calls:
        return None
    unused = sorted(tools.offered - set(tools.calls))
    if not unused:
        return None
    return Symptom(
        "unused_tool",
        Severity.NOTE,
        history.lines[-1]["step"] if history.lines else 0,
        f"{', '.join(unused)}: never called in {tools.num_episodes} episodes",
        "The task may not need it, or the model does not know when it helps.",
        "Say in the environment's prompt when it is to be called, or leave it out.",
    )
