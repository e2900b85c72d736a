"""One line of the doctor's report."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from xp.errors import ExitCode, XpError


class Verdict(StrEnum):
    OK = "ok"
    FAULT = "FAULT"
    UNKNOWN = "?"
    """The check cannot be made from here; the line says why."""


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    subject: str
    verdict: Verdict
    text: str
    """The result, and for a fault how to fix it."""
    code: ExitCode = ExitCode.RUNTIME
    """Exit code that a fault gives the process."""

    def __str__(self) -> str:
        return f"{self.verdict:5} {self.subject:12} {self.text}"


Findings = Iterator[Finding]


def ok(subject: str, text: str) -> Finding:
    return Finding(subject, Verdict.OK, text, ExitCode.OK)


def unknown(subject: str, text: str) -> Finding:
    return Finding(subject, Verdict.UNKNOWN, text, ExitCode.OK)


def fault(subject: str, text: str, code: ExitCode = ExitCode.RUNTIME) -> Finding:
    return Finding(subject, Verdict.FAULT, text, code)


def fault_of(subject: str, error: XpError) -> Finding:
    """Finding of an XpError, whose message already says how to fix it."""
    return Finding(subject, Verdict.FAULT, str(error).replace("\n", "; "), error.code)
