"""A symptom: the finding, its step, its usual cause, and what to change."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


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
