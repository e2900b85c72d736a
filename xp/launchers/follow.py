"""Base of launchers of clusters, whose nodes see the outputs root: a job is followed by the files that it writes."""

from __future__ import annotations

import codecs
import os
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from xp.errors import ExitCode, XpError
from xp.launchers import secrets_files
from xp.launchers.base import Context, Echo, Launch
from xp.launchers.node.job_spec import read_result
from xp.launchers.node.log import plain
from xp.spec.place import LauncherSpec

LOOK_S = 0.3
"""Seconds between two reads of the log and the result."""
ASK_S = 3.0
"""Seconds between two requests to the cluster."""
PATIENCE_S = 10.0
"""Seconds until a result is visible after the cluster reported the job's end (network filesystems)."""
STOPPED_S = 2.0
"""The same for a job that was stopped, which writes no result."""
PIECE_BYTES = 1024 * 1024
"""Largest size of a text that is read at once."""


class ClusterLauncher:
    """Waits for jobs by their logs and results below the outputs root."""

    is_here = True

    def __init__(self, spec: LauncherSpec, outputs: Path) -> None:
        self._spec, self._outputs = spec, outputs.absolute()

    def _ended(self, launch: Launch) -> int | None:
        """Queries the cluster: None while the job is queued or running, else the exit code if there is no result."""
        raise NotImplementedError

    def _message(self, launch: Launch) -> str:
        """The cluster's message on a job without a result, for the log."""
        raise NotImplementedError

    def wait(self, launch: Launch, echo: Echo) -> int:
        directory = (self._outputs / launch.log).parent
        return follow(directory, lambda: self._ended(launch), lambda: self._message(launch), echo)

    def poll(self, launch: Launch) -> int | None:
        """The exit code; None while the job is queued or running."""
        directory = (self._outputs / launch.log).parent
        if (result := read_result(directory)) is not None:
            return result.exit_code
        code = self._ended(launch)
        result = read_result(directory)  # again: the job may have written it meanwhile
        return code if result is None else result.exit_code

    def fetch(self, launch: Launch) -> None:
        """Does nothing: the job's files are below the outputs root."""

    def close(self, context: Context) -> None:
        secrets_files.forget(context)


class Tail:
    """Reads the text that was added to a file since the last read."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._position = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def read(self) -> Iterator[str]:
        """New text of the file in pieces of whole lines, if these are not longer than a piece; nothing if the file does
        not exist yet."""
        while data := self._piece():
            self._position += len(data)
            yield self._decoder.decode(data)

    def _piece(self) -> bytes:
        try:
            with os.fdopen(os.open(self._file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
                if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    raise XpError(f"{self._file} is not a regular file", ExitCode.RUN_DIR)
                file.seek(self._position)
                data = file.read(PIECE_BYTES)
        except FileNotFoundError:
            return b""
        return data[: data.rfind(b"\n") + 1] or data if len(data) == PIECE_BYTES else data


def follow(directory: Path, ended: Callable[[], int | None], explain: Callable[[], str], echo: Echo) -> int:
    """Echo a stage's log until its result is there; returns the exit code.

    Args:
        directory: the stage's.
        ended: queries the cluster: None while the job is queued or running, else the exit code if there is no result.
        explain: returns the cluster's message on a job without a result, for the log.
        echo: receives the log's lines, which the job has redacted.
    """
    tail = Tail(directory / "log.txt")
    polled_at = time.monotonic()
    over: tuple[float, int] | None = None
    while (result := read_result(directory)) is None:
        echo_new(tail, echo)
        now = time.monotonic()
        if over is not None and now - over[0] > (STOPPED_S if over[1] > 128 else PATIENCE_S):
            break
        if over is None and now - polled_at >= ASK_S:
            code = ended()
            over, polled_at = None if code is None else (now, code), time.monotonic()
        time.sleep(LOOK_S)
    echo_new(tail, echo)
    if result is not None:
        return result.code
    assert over is not None
    text = explain().strip()
    if text:
        with (directory / "log.txt").open("a", encoding="utf-8") as log:
            log.write(f"{text}\n")
        echo_new(tail, echo)
    return over[1]


def echo_new(tail: Tail, echo: Echo) -> None:
    """Passes on the text that was added since the last read."""
    for text in tail.read():
        echo(plain(text))
