"""A symptom: what was seen, at which step, why that usually is, and what to change."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """How much a symptom says."""

    BROKEN = "broken"
    """Nothing can be learned so."""
    ALARM = "alarm"
    """Something is wrong, or soon will be."""
    NOTE = "note"
    """Worth knowing; a run may be good all the same."""


@dataclass(frozen=True)
class Symptom:
    """What one rule found."""

    rule: str
    severity: Severity
    step: int
    """The last step that was looked at."""
    found: str
    """With its figure."""
    cause: str
    """The usual one."""
    change: str
    """Names the fields."""

    def text(self) -> str:
        """Two sentences for people."""
        return f"{self.found} (step {self.step}). {self.cause} {self.change}"
