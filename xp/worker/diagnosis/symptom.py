"""A symptom: the finding, its step, its usual cause, and what to change; and what a rule is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import wraps

from xp.worker.diagnosis.history import History


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


def rule(
    name: str, cause: str, change: str
) -> Callable[[Callable[[History], Finding | None]], Rule]:
    """Decorator: makes a rule of a function that returns a finding, or None if the run is good."""

    def decorated(find: Callable[[History], Finding | None]) -> Rule:
        @wraps(find)
        def symptom(history: History) -> Symptom | None:
            finding = find(history)
            if finding is None:
                return None
            return Symptom(name, *finding, cause, change)

        return symptom

    return decorated
