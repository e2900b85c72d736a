"""Ends a child process that leads a session of its own, together with the processes that it started there."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress
from typing import Final

STEP_S: Final = 0.02


def wait_unreaped(process: subprocess.Popen[bytes], limit_s: float | None = None) -> bool:
    """Waits for the child's end and leaves it a zombie, so that its id still names its group alone.

    Returns:
        Whether the child has ended within `limit_s` seconds; None: no limit.
    """
    if limit_s is None:
        with suppress(ChildProcessError):  # It is reaped.
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        return True
    deadline = time.monotonic() + limit_s
    while not _has_ended(process):
        if time.monotonic() >= deadline:
            return False
        time.sleep(STEP_S)
    return True


def kill_session(process: subprocess.Popen[bytes]) -> None:
    """Kills the child and its group, unless the child is reaped; the group must be the child's own.

    Processes that moved to another group or session are not found.
    """
    if process.returncode is not None:
        return
    with suppress(ProcessLookupError, PermissionError):
        if os.getpgid(process.pid) == process.pid:
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    try:
        return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True
