"""Meaning of a stage's exit code: for the message, for xp's own exit code, and for a restart."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from contextlib import suppress

from xp.errors import ExitCode

_RESTARTED = frozenset({ExitCode.ENVIRONMENT, ExitCode.UNHEALTHY, ExitCode.ENGINE})
"""Exit codes of stages that say: the infrastructure's fault."""
_RESTARTED_SIGNALS = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGABRT, signal.SIGBUS})
"""Out of memory, a machine that shuts down, a communication library that gave up. SIGSEGV is a bug and stays one."""
_OWN_CODES = frozenset({ExitCode.OK, ExitCode.INTERNAL, ExitCode.INTERRUPTED, ExitCode.TERMINATED})
"""Codes of a stage that are not passed on: Python's own 1 is no bug of xp's, and nobody interrupted xp."""


def is_restartable(code: int) -> bool:
    """Returns whether the infrastructure failed, and not the user's program."""
    return code in _RESTARTED or code - 128 in _RESTARTED_SIGNALS


def reason(code: int, missing: Sequence[str]) -> str:
    """Reason of a stage's failure, in a few words."""
    if missing:
        return f"it exited 0 without writing {', '.join(missing)}"
    if code > 128:
        with suppress(ValueError):
            name = signal.Signals(code - 128).name
            hint = "; most often the machine ran out of memory" if code - 128 == signal.SIGKILL else ""
            return f"killed by {name}{hint}"
    known = f" ({ExitCode(code).name.lower()})" if code in set(ExitCode) - _OWN_CODES else ""
    return f"exit code {code}{known}"


def exit_code(code: int, missing: Sequence[str]) -> ExitCode:
    """Exit code of xp for a stage that exited with `code`, or with 0 and without its outputs."""
    if missing:
        return ExitCode.MISSING_OUTPUT
    return ExitCode(code) if code in set(ExitCode) - _OWN_CODES else ExitCode.STAGE_FAILED
