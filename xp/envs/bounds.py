"""Limits of a process that runs what others wrote (an environment, a grader, a chat template)."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from typing import Final

PR_SET_PDEATHSIG: Final = 1
WATCH_S: Final = 0.5
GRACE_S: Final = 5.0
STEP_S: Final = 0.1
USUAL_STACK: Final = 8 * 2**20
"""Bytes of a thread's stack; where `ulimit -s` is unlimited, glibc takes less."""


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


def stacks_within(memory_gb: float) -> int:
    """Returns how many threads' stacks `memory_gb` has room for, at least one.

    A whole stack counts for `bound_memory` (`ulimit -s`, 8 MB as a rule), however little of it is used.
    """
    size = USUAL_STACK
    if sys.platform == "linux":
        import resource

        soft, _ = resource.getrlimit(resource.RLIMIT_STACK)
        size = USUAL_STACK if soft == resource.RLIM_INFINITY else soft
    return max(1, int(memory_gb * 1e9 / size))


def die_with(parent: int) -> None:
    """Ends this process with its parent, even if no Python code of it can run any more.

    The kernel sends SIGTERM at the parent's end. A handler in Python, and a thread, need the interpreter, which a
    regular expression or a library may hold for ever. On Linux, a guard process therefore sends SIGKILL after
    GRACE_S seconds; it also kills what the process leaves in its session. Elsewhere a thread does what it can.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getpgrp() == os.getpid():
            _start_guard(os.getpid(), parent)
            return
    # A process that leads no group is not guarded: its id may be given to another one, which a guard would kill.
    threading.Thread(target=_watch, args=(parent,), name="parent-watch", daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(WATCH_S)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE_S)
    os._exit(1)


def _start_guard(process: int, parent: int) -> None:
    """Starts the guard of `process`, in its group but not among its children, which the user's code may wait for."""
    if (between := os.fork()) > 0:
        os.waitpid(between, 0)
        return
    try:
        if os.fork() == 0:
            _guard(process, parent)
    finally:
        os._exit(0)


def _guard(process: int, parent: int) -> None:
    """Waits for the end of the process or of its parent, then kills the process and its group.

    The guard is a member of the group, so the system gives the process's id to no other process meanwhile.
    """
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.chdir("/")
    for descriptor in os.listdir("/proc/self/fd"):  # An open pipe would hide the process's end from its parent.
        with suppress(OSError):
            os.close(int(descriptor))
    while _parent_of(process) == parent:
        time.sleep(WATCH_S)
    deadline = time.monotonic() + GRACE_S
    if _parent_of(process) is not None:
        os.kill(process, signal.SIGTERM)  # The kernel sends none if the parent ended before `die_with`.
    while _parent_of(process) is not None and time.monotonic() < deadline:
        time.sleep(STEP_S)
    os.killpg(process, signal.SIGKILL)


def _parent_of(process: int) -> int | None:
    """The parent of a process; None: the process has ended."""
    try:
        with open(f"/proc/{process}/stat", "rb") as file:
            state, parent = file.read().rpartition(b")")[2].split()[:2]
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if state in (b"Z", b"X") else int(parent)
