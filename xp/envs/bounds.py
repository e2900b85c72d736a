"""Limits on a process that runs a user's environment or grader: its memory, and its end with the parent's."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from typing import Final

PR_SET_PDEATHSIG: Final = 1
WATCH_S: Final = 0.5
GRACE_S: Final = 5.0


def bound_memory(memory_gb: float | None) -> None:
    """Let this process, and each one that it starts, have so much memory of its own; what asks for more fails.

    In Python that is a MemoryError where it was asked for. Files that are mapped, and libraries, do not count.
    """
    if memory_gb is not None and sys.platform == "linux":
        import resource

        wanted = int(memory_gb * 1e9)
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def die_with(parent: int) -> None:
    """Two lines: the kernel's signal, and a watch for the case that the parent was gone before it was asked for."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(WATCH_S)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(GRACE_S)
        os._exit(1)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()
