"""Runs a job for the supervisor, so that no process of the job outlives the run, even if either process is killed.

    guard.py GRACE_S ARGV...

Standard input comes from the supervisor: T requests an orderly shutdown, K an immediate KILL; its end (the supervisor
has ended, even by KILL) means T. An orderly shutdown is TERM to the job's first process, which may need its children to
clean up (sessions on its own server); TERM to all others when it has ended or after half the grace period; KILL after
the grace period. On Linux, orphans of the job become the guard's children, so the tree stays complete. The exit code is
the job's; 128 + n if signal n killed it.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import time
from collections.abc import Sequence

import psutil

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
CANNOT_START = 11
NEVER = float("inf")
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Signals that request an orderly shutdown."""
KILL_PATIENCE_S = 5.0
"""Seconds that KILL may take; the guard does not wait longer for a process that hangs in the kernel."""


def main(argv: Sequence[str]) -> int:
    grace_s, command = float(argv[0]), list(argv[1:])
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    wakeup = _wake_on_signals()
    job = _start(command)
    return _watch(job, grace_s, wakeup)


def _watch(job: int, grace_s: float, wakeup: int) -> int:
    """Waits for the job, or ends it; returns its exit code when all its processes have ended."""
    status: int | None = None
    all_at = kill_at = NEVER
    is_asked = False
    sources = [0, wakeup]
    while True:
        request = _next_request(sources, None if kill_at == NEVER else 0.05)
        status = _reap(job, status)
        if status is not None and not _descendants():
            return status
        now = time.monotonic()
        if request and kill_at == NEVER and status is None:
            os.kill(job, signal.SIGTERM)
            all_at, kill_at = now + grace_s / 2, now + grace_s
        if status is not None:  # end the remaining processes
            all_at, kill_at = min(all_at, now), min(kill_at, now + grace_s)
        if request == "K":
            kill_at = now
        if now >= all_at and not is_asked:
            _signal_all(signal.SIGTERM)
            is_asked = True
        if now >= kill_at:
            _signal_all(signal.SIGKILL)
            if now >= kill_at + KILL_PATIENCE_S:
                return 128 + signal.SIGKILL if status is None else status


def _next_request(sources: list[int], timeout_s: float | None) -> str:
    """The request T or K; an empty string: check the processes again."""
    ready, _, _ = select.select(sources, [], [], timeout_s)
    request = ""
    for source in ready:
        data = os.read(source, 512)
        if source == 0:
            if not data:
                sources.remove(0)
            request = "K" if b"K" in data else "T"
        elif any(number in data for number in ENDING):
            request = request or "T"
    return request


def _wake_on_signals() -> int:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, *ENDING):
        signal.signal(number, lambda *_: None)
    return reader


def _start(command: list[str]) -> int:
    guard = os.getpid()
    # Until exec, the job has the guard's handlers; a signal that came to them would be lost.
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    job = os.fork()
    if job:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
        return job
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, *ENDING):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
        os.setsid()
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != guard:
            os._exit(128 + signal.SIGKILL)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"cannot start {command[0]}: {error.strerror}\n".encode())
    finally:
        os._exit(CANNOT_START)


def _reap(job: int, status: int | None) -> int | None:
    while True:
        try:
            pid, wait_status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return status
        if pid == 0:
            return status
        if pid == job:
            code = os.waitstatus_to_exitcode(wait_status)
            status = code if code >= 0 else 128 - code


def _descendants() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


def _signal_all(number: int) -> None:
    for process in _descendants():
        try:
            process.send_signal(number)
        except psutil.Error:
            continue


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
