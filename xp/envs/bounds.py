"""Limits of a process that runs what others wrote (an environment, a grader, a chat template)."""

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
    """Limits the private memory of this process and of each child process, in GB; larger allocations fail.

    In Python, an allocation then raises MemoryError. Mapped files and libraries do not count.
    """
    if memory_gb is not None and sys.platform == "linux":
        import resource

        wanted = int(memory_gb * 1e9)
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def die_with(parent: int) -> None:
    """Ends this process with its parent: by the kernel's signal, and by a watch in case the parent ended before."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(WATCH_S)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(GRACE_S)
        os._exit(1)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()
