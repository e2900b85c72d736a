"""The process of one session without a container: it runs the commands, and at its end kills all their processes.

It uses the standard library only and is run by its path, so that it starts in about 20 ms. Standard input has one
request per line, `{"command", "environ", "timeout_s", "output_bytes", "max_processes"}`, standard output one answer per
line. It ends with its standard input or its parent. It makes its directory, and removes it at the end.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

PR_SET_CHILD_SUBREAPER = 36
POLL_S = 0.1
WATCH_S = 0.5
DRAIN_S = 0.3
END_S = 10.0
PIECE, PIPE_PIECES = 64 * 1024, 16
"""Bytes of a piece of output, and the number of pieces in the largest pipe: 1 MiB."""
_ending = threading.Lock()
"""Held while a command is started, and during shutdown: a process started then would outlive it."""


class Output:
    """The beginning and the end of a command's output; the middle is dropped while it is read."""

    def __init__(self, descriptor: int, limit: int) -> None:
        self._half = max(limit // 2, 1)
        self._first, self._last, self._dropped = b"", b"", 0
        self._lock = threading.Lock()
        self._descriptor: int | None = descriptor
        os.set_blocking(descriptor, False)
        self._reader = threading.Thread(target=self._read, args=(descriptor,), daemon=True)
        self._reader.start()

    def text(self) -> str:
        """Output until the command's end, and for a moment that of background processes; their later output is not
        read."""
        self._reader.join(DRAIN_S)
        with self._lock:
            for _ in range(PIPE_PIECES):  # on a busy machine the thread may not have had its turn
                if not self._take():
                    break
            first, last = (part.decode("utf-8", "replace") for part in (self._first, self._last))
            middle = f"\n[... {self._dropped} bytes left out ...]\n" if self._dropped else ""
        return first + middle + last

    def _read(self, descriptor: int) -> None:
        while self._descriptor is not None:
            select.select([descriptor], [], [])
            with self._lock:
                self._take()
        os.close(descriptor)

    def _take(self) -> bool:
        """Reads a piece, if there is one; the caller has the lock, which keeps the pieces in order."""
        if self._descriptor is None:
            return False
        try:
            piece = os.read(self._descriptor, PIECE)
        except BlockingIOError:
            return False
        if not piece:
            self._descriptor = None
            return False
        room = self._half - len(self._first)
        self._first += piece[:room]
        self._last += piece[room:]
        excess = max(len(self._last) - self._half, 0)
        self._dropped += excess
        self._last = self._last[excess:]
        return True


def descendants() -> dict[int, int]:
    """Process -> its group, for all descendants of this process."""
    children: dict[int, list[tuple[int, int]]] = {}
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    state, parent, group = file.read().rpartition(b")")[2].split()[:3]
            except OSError:
                continue
            if state != b"Z":
                children.setdefault(int(parent), []).append((int(name), int(group)))
    found: dict[int, int] = {}
    waiting = [os.getpid()]
    while waiting:
        for process, its_group in children.get(waiting.pop(), ()):
            if process not in found:
                found[process] = its_group
                waiting.append(process)
    return found


def kill_all() -> None:
    """Kills process groups, which includes processes that are being forked, until none is left."""
    own, deadline = os.getpgrp(), time.monotonic() + END_S
    while (found := descendants()) and time.monotonic() < deadline:
        for group in set(found.values()) - {own}:
            _kill(os.killpg, group)
        for process in found:
            _kill(os.kill, process)
        _reap()


def _kill(kill: Callable[[int, int], None], number: int) -> None:
    with suppress(OSError):
        kill(number, signal.SIGKILL)


def _reap() -> None:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def run(request: dict[str, Any], root: str) -> dict[str, Any]:
    """Runs a command; returns the exit code (None if it was killed), the output, and the reason of the kill."""
    reading, writing = os.pipe()
    try:
        with _ending:
            process = subprocess.Popen(
                ["bash", "-c", request["command"]],
                stdin=subprocess.DEVNULL,
                stdout=writing,
                stderr=writing,
                cwd=os.path.join(root, "app"),
                env=request["environ"],
                start_new_session=True,
            )
    except (OSError, ValueError) as error:
        os.close(reading)
        return {"code": None, "output": "", "killed": f"it could not be started: {error}"}
    finally:
        os.close(writing)
    output = Output(reading, request["output_bytes"])
    killed = _wait(process, request["timeout_s"], request["max_processes"])
    return {"code": None if killed else process.returncode, "output": output.text(), "killed": killed}


def _wait(process: subprocess.Popen[bytes], timeout_s: float, max_processes: int) -> str:
    """Waits for a command's end; returns why it was killed, empty if it ended by itself."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            process.wait(POLL_S)
            return ""
        except subprocess.TimeoutExpired:
            pass
        if len(descendants()) > max_processes:
            kill_all()
            reason = f"it had started more than {max_processes} processes"
        elif time.monotonic() > deadline:
            _kill(os.killpg, process.pid)
            reason = f"it took longer than {timeout_s:g} s"
        else:
            continue
        process.wait()
        return reason


def remove(root: str) -> None:
    """Removes the directory, even with restrictive modes; links are removed and not followed, and modes of nothing
    above it are changed."""
    if not os.path.isdir(root) or os.path.islink(root):
        return  # A command has removed or replaced it.

    def again(function: Callable[[str], object], path: str, _: object) -> None:
        try:
            if path != root:
                os.chmod(os.path.dirname(path), 0o700)
            if not os.path.islink(path):
                os.chmod(path, 0o700)
            function(path)
        except OSError:
            pass

    for _ in range(3):
        shutil.rmtree(root, onerror=again)
        if not os.path.lexists(root):
            return


def main(root: str, memory_bytes: int, parent: int) -> None:
    """Makes the directory, reports it, then answers requests until standard input ends."""
    if sys.platform == "linux":
        import resource

        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1)
        if memory_bytes:
            resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.mkdir(root, 0o700)
    threading.Thread(target=_end_with, args=(parent, root), daemon=True).start()
    try:
        print("{}", flush=True)
        while line := sys.stdin.readline():
            print(json.dumps(run(json.loads(line), root)), flush=True)
            _reap()
    except OSError:
        pass  # the parent does not read the answer
    finally:
        end(root)


def end(root: str) -> None:
    """Removes all processes and the directory, then exits even if threads are running."""
    with _ending:
        kill_all()
        remove(root)
        os._exit(0)


def _end_with(parent: int, root: str) -> None:
    """Ends this process when its parent ends or closes standard input, even during a command."""
    hung_up = select.poll()
    hung_up.register(sys.stdin.fileno(), 0)  # Reports a hang-up alone.
    while os.getppid() == parent and not hung_up.poll(WATCH_S * 1000):
        pass
    end(root)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
