"""A symptom: what was seen, at which step, why that usually is, and what to change."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """Weight of a symptom."""

    BROKEN = "broken"
    """Nothing can be learned so."""
    ALARM = "alarm"
    """Something is wrong, or soon will be."""
    NOTE = "note"
    """Worth knowing; a run may be good all the same."""


@dataclass(frozen=True)
class Symptom:
    """Finding of one rule."""

    rule: str
    severity: Severity
    step: int
    """The last step that was looked at."""
    found: str
    """The finding, with its figure."""
    cause: str
    """Usual cause."""
    change: str
    """Remedy; names the fields."""

    def text(self) -> str:
        """Two sentences for people."""
        return f"{self.found} (step {self.step}). {self.cause} {self.change}"
