"""A process between a program of xp and its child (a job, a server, a Ray node): no process of the child outlives xp.

    processes.py GRACE_S ARGV...

Standard input comes from xp: T requests an orderly shutdown, K an immediate KILL; its end (xp has ended, even by KILL)
means T. An orderly shutdown is TERM to the child, which may need its own children to clean up (sessions on its own
server); TERM to all others when it has ended or after half the grace period; KILL after the grace period. On Linux,
orphans become the guard's children, so the tree stays complete. The exit code is the child's; 128 + n if signal n
killed it. This file runs by its path, without xp.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
CANNOT_START = 11
NEVER = float("inf")
WAKING = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
KILL_PATIENCE_S = 5.0
"""Seconds that KILL may take; the guard does not wait longer for a process that hangs in the kernel."""
GRACE_S = 5.0
"""Seconds between TERM and KILL of what a stage starts; a stage itself has `launcher.grace_s`."""


def start(
    command: Sequence[str], grace_s: float = GRACE_S, **options: Any
) -> subprocess.Popen[bytes]:
    """Starts a command under a guard, whose process is returned; `options` are Popen's."""
    words = [sys.executable, "-E", "-P", __file__, str(grace_s), *command]
    return subprocess.Popen(words, stdin=subprocess.PIPE, start_new_session=True, **options)


def ask(process: subprocess.Popen[bytes], *, now: bool = False) -> None:
    """Requests the end of a guarded command: in order within the grace period, or now."""
    assert process.stdin is not None
    with suppress(OSError, ValueError):
        os.write(process.stdin.fileno(), b"K" if now else b"T")


def end(process: subprocess.Popen[bytes], *, now: bool = False) -> None:
    """Ends a guarded command and all that it started; returns when they have ended."""
    assert process.stdin is not None
    ask(process, now=now)
    process.wait()
    process.stdin.close()


def main(argv: Sequence[str]) -> int:
    grace_s = float(argv[0])
    command = list(argv[1:])
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in WAKING:
        signal.signal(number, lambda *_: None)
    return _watch(_start(command), grace_s, reader)


def _watch(job: int, grace_s: float, wakeup: int) -> int:
    """Waits for the job, or ends it; returns its exit code when all its processes have ended."""
    status: int | None = None
    all_at = kill_at = NEVER
    has_sent_term = False
    sources = [0, wakeup]
    while True:
        request = _next_request(sources, None if kill_at == NEVER else 0.05)
        status = _reap(job, status)
        if status is not None and not _descendants():
            return status
        now = time.monotonic()
        if request and kill_at == NEVER and status is None:
            os.kill(job, signal.SIGTERM)
            all_at = now + grace_s / 2
            kill_at = now + grace_s
        if status is not None:  # end the remaining processes
            all_at = min(all_at, now)
            kill_at = min(kill_at, now + grace_s)
        if request == "K":
            kill_at = now
        if now >= all_at and not has_sent_term:
            _signal_all(signal.SIGTERM)
            has_sent_term = True
        if now >= kill_at:
            _signal_all(signal.SIGKILL)
            if now >= kill_at + KILL_PATIENCE_S:
                if status is None:
                    return 128 + signal.SIGKILL
                return status


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
        elif any(number in data for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)):
            request = request or "T"
    return request


def _start(command: list[str]) -> int:
    guard = os.getpid()
    # The guard's handlers are the child's until it is the program: a TERM from the supervisor would be lost there.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, WAKING)
    job = os.fork()
    if job:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        return job
    try:
        signal.set_wakeup_fd(-1)
        for number in (*WAKING, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.setsid()
        end_with_parent()
        if os.getppid() != guard:
            os._exit(128 + signal.SIGKILL)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
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


def _descendants() -> list[Any]:
    import psutil

    return psutil.Process().children(recursive=True)


def _signal_all(number: int) -> None:
    import psutil

    for process in _descendants():
        with suppress(psutil.Error):
            process.send_signal(number)


def end_with_parent() -> None:
    """Lets the kernel kill this process when its parent ends; for a child before its program."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
