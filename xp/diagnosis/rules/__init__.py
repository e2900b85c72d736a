"""The rules, in the order of their report: causes come before their consequences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from xp.diagnosis.history import History
from xp.diagnosis.rules import (
    collapse,
    engine_gap,
    entropy,
    equal_groups,
    gradient,
    hacked,
    kl,
    malformed,
    memorised,
    no_tool_call,
    saturated,
    truncation,
    unused_tool,
    void,
    waiting,
    warm_up,
)
from xp.diagnosis.symptom import Symptom

Rule = Callable[[History], Symptom | None]

RULES: Final[tuple[Rule, ...]] = (
    *(void.find, engine_gap.find, malformed.find, no_tool_call.find, collapse.find, equal_groups.find, saturated.find),
    *(hacked.find, memorised.find, entropy.find, kl.find, gradient.find, truncation.find, warm_up.find),
    *(unused_tool.find, waiting.find),
)


def symptoms(history: History) -> list[Symptom]:
    """Symptoms that the rules find in a run, finished or not."""
    return [found for rule in RULES if (found := rule(history)) is not None]
