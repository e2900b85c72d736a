"""Runs the commands of one session without a container; the guard of this process ends all that they started."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from xp.contrib.harbor.sandbox import Ran
from xp.envs.rpc_server import directory_kind, serve, to_stderr
from xp.lib.atomic import private_directory

DRAIN_S = 0.5
PIECE = 64 * 1024


class Output:
    """The beginning and the end of a command's output; the middle is dropped while it is read."""

    def __init__(self, descriptor: int, limit: int) -> None:
        self._half = max(limit // 2, 1)
        self._first = b""
        self._last = b""
        self._dropped = 0
        self._lock = threading.Lock()
        self._reader = threading.Thread(target=self._read, args=(descriptor,), daemon=True)
        self._reader.start()

    def text(self) -> str:
        """Output until the command's end; background processes are waited for a moment only."""
        self._reader.join(DRAIN_S)
        with self._lock:
            first, last = (part.decode("utf-8", "replace") for part in (self._first, self._last))
            if self._dropped:
                middle = f"\n[... {self._dropped} bytes left out ...]\n"
            else:
                middle = ""
        return first + middle + last

    def _read(self, descriptor: int) -> None:
        while piece := os.read(descriptor, PIECE):
            with self._lock:
                room = self._half - len(self._first)
                self._first += piece[:room]
                self._last += piece[room:]
                excess = max(len(self._last) - self._half, 0)
                self._dropped += excess
                self._last = self._last[excess:]
        os.close(descriptor)


class Keeper:
    """Makes the session's directory, and removes it at its end; see xp.envs.rpc_server."""

    def __init__(self, _: None) -> None:
        self._root = private_directory(directory_kind(os.getppid()))

    def root(self, _: int, __: None) -> Path:
        return self._root

    def run(self, _: int, request: dict[str, Any]) -> Ran:
        """Runs a command in the directory `app`, and kills its process group after the time limit."""
        reading, writing = os.pipe()
        try:
            process = subprocess.Popen(
                ["bash", "-c", request["command"]],
                stdin=subprocess.DEVNULL,
                stdout=writing,
                stderr=writing,
                cwd=self._root / "app",
                env=request["environ"],
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            os.close(reading)
            return Ran(None, "", f"it could not be started: {error}")
        finally:
            os.close(writing)
        output = Output(reading, request["output_bytes"])
        killed = ""
        try:
            process.wait(request["timeout_s"])
        except subprocess.TimeoutExpired:
            with suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            killed = f"it took longer than {request['timeout_s']:g} s"
        return Ran(None if killed else process.returncode, output.text(), killed)

    def end(self) -> None:
        remove(self._root)


def remove(root: Path) -> None:
    """Removes a directory, even with restrictive modes; links are removed, not followed."""
    if root.is_symlink() or not root.is_dir():
        return  # A command has removed or replaced it.
    with suppress(
        OSError
    ):  # Another thread, or a process of the command, may remove it at the same time.
        root.chmod(0o700)
    for directory, folders, _ in os.walk(root):
        for folder in (Path(directory, name) for name in folders):
            with suppress(OSError):
                folder.chmod(0o700, follow_symlinks=not folder.is_symlink())
    shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    to_stderr()
    serve(Keeper)
