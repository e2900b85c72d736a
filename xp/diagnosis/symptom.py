"""A symptom: the finding, its step, its usual cause, and what to change; and what a rule is."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import wraps
from pathlib import Path
from typing import Final

from xp.diagnosis.history import History


class Severity(StrEnum):
    """Severity of a symptom."""

    BROKEN = "broken"
    """Nothing can be learned."""
    ALARM = "alarm"
    """Something is wrong, or will soon be."""
    NOTE = "note"
    """Information; the run may still be good."""


@dataclass(frozen=True)
class Symptom:
    """Finding of one rule."""

    rule: str
    severity: Severity
    step: int
    """The last step that was checked."""
    found: str
    """The finding, with its number."""
    cause: str
    """Usual cause."""
    change: str
    """Remedy, with the names of the fields."""

    def text(self) -> str:
        """The symptom as two sentences."""
        return f"{self.found} (step {self.step}). {self.cause} {self.change}"


Finding = tuple[Severity, int, str]
"""Severity, the last step that was checked, and the finding with its number."""
Rule = Callable[[History], Symptom | None]


_TEXTS: Final[Mapping[str, Mapping[str, str]]] = tomllib.loads(
    Path(__file__).with_name("rules.toml").read_text(encoding="utf-8")
)
"""Name of a rule -> `cause` and `change` of its symptom."""


def rule(find: Callable[[History], Finding | None]) -> Rule:
    """Decorator: makes a rule of a function that returns a finding, or None if the run is good."""
    name, texts = find.__name__, _TEXTS[find.__name__]

    @wraps(find)
    def symptom(history: History) -> Symptom | None:
        finding = find(history)
        return None if finding is None else Symptom(name, *finding, texts["cause"], texts["change"])

    return symptom
