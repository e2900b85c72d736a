"""Tool calls that cannot be parsed.

Source: xp.episode.dialects; a model writes calls in the format of its chat template, another format is malformed.
"""

from __future__ import annotations

from typing import Final

from xp.diagnosis.history import History, change
from xp.diagnosis.rules.no_tool_call import FEWEST_EPISODES
from xp.diagnosis.symptom import Severity, Symptom

MANY: Final = 0.3
FALL: Final = 0.1
MAX_SHOWN: Final = 160
"""Largest number of a turn's characters in the message."""


def find(history: History) -> Symptom | None:
    points, tools = history.series("episodes/malformed"), history.tools
    found, turn = change(points), None if tools is None else tools.malformed
    example = "" if turn is None else f", such as {turn[:MAX_SHOWN]!r}"
    if tools is not None and turn is not None and not tools.num_calls and tools.num_episodes >= FEWEST_EPISODES:
        severity, text = Severity.BROKEN, f"no tool call of {tools.num_episodes} episodes can be read{example}"
    elif found is None or found.after < MANY or found.by < -FALL:
        return None
    else:
        severity, text = (
            Severity.ALARM,
            f"{found.after:.0%} of the episodes hold a tool call that cannot be read{example}",
        )
    return Symptom(
        "malformed",
        severity,
        history.lines[-1]["step"] if history.lines else 0,
        text,
        "The dialect is not the one that the model writes, or a turn is cut within a call.",
        "Check model.dialect, and training.max_tokens_per_turn.",
    )
