"""Meaning of a stage's exit code, for messages, xp's own exit code, and restarts."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from contextlib import suppress

from xp.errors import ExitCode

_RESTARTED = frozenset({ExitCode.ENVIRONMENT, ExitCode.UNHEALTHY, ExitCode.ENGINE})
"""Exit codes of stages for infrastructure faults."""
_RESTARTED_SIGNALS = frozenset(
    {signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGABRT, signal.SIGBUS}
)
"""Signals of infrastructure faults: out of memory, shutdown, an abort of a communication library. SIGSEGV is a bug."""
_STAGE_CODES = frozenset(
    {ExitCode.OK, ExitCode.INTERNAL, ExitCode.INTERRUPTED, ExitCode.TERMINATED}
)
"""Codes of a stage that xp does not exit with: Python's 1 is not a bug in xp, and xp was not interrupted."""


def is_restartable(code: int) -> bool:
    """Returns whether the infrastructure failed, not the user's program."""
    return code in _RESTARTED or code - 128 in _RESTARTED_SIGNALS


def reason(code: int, missing: Sequence[str]) -> str:
    """Short reason of a stage's failure."""
    if missing:
        return f"it exited 0 without writing {', '.join(missing)}"
    if code > 128:
        with suppress(ValueError):
            number = signal.Signals(code - 128)
            text = f"killed by {number.name}"
            if number is signal.SIGKILL:
                text += "; most often the machine ran out of memory"
            return text
    if code in set(ExitCode) - _STAGE_CODES:
        return f"exit code {code} ({ExitCode(code).name.lower()})"
    return f"exit code {code}"


def exit_code(code: int, missing: Sequence[str]) -> ExitCode:
    """Exit code of xp for a stage that exited with `code`, or with 0 but without its outputs."""
    if missing:
        return ExitCode.MISSING_OUTPUT
    if code in set(ExitCode) - _STAGE_CODES:
        return ExitCode(code)
    return ExitCode.STAGE_FAILED
