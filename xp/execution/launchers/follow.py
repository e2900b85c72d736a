"""Base of launchers of clusters, whose nodes see the outputs root: a job is followed by the files that it writes."""

from __future__ import annotations

import codecs
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from xp.errors import ExitCode
from xp.execution.launchers import secrets_files
from xp.execution.launchers.base import Context, Echo, Launch
from xp.execution.launchers.node.job_spec import read_result
from xp.lib.reading import opened
from xp.lib.terminal import plain
from xp.spec.launcher import LauncherSpec

LOOK_S = 0.3
"""Seconds between two reads of the log and the result."""
ASK_S = 3.0
"""Seconds between two requests to the cluster."""
DEADLINE_S = 10.0
"""Seconds until a result is visible after the cluster reported the job's end (network filesystems)."""
STOPPED_S = 2.0
"""Seconds of the same for a job that was stopped, which writes no result."""
PIECE_BYTES = 1024 * 1024
"""Largest size of a text that is read at once."""


class ClusterLauncher:
    """Waits for jobs by their logs and results below the outputs root."""

    is_here = True

    def __init__(self, spec: LauncherSpec, outputs: Path) -> None:
        self._spec = spec
        self._outputs = outputs.absolute()

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
        code = self._ended(launch)
        result = read_result(directory)  # afterwards: the job may have written it meanwhile
        if result is None:
            return code
        return result.exit_code

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
        if not self._file.exists():
            return
        with opened(self._file, ExitCode.RUN_DIR) as file:
            file.seek(self._position)
            while data := file.read(PIECE_BYTES):
                if len(data) == PIECE_BYTES:
                    end = data.rfind(b"\n") + 1
                    if end:
                        data = data[:end]
                self._position += len(data)
                file.seek(self._position)
                yield self._decoder.decode(data)

    def echo(self, echo: Echo) -> None:
        """Passes on the text that was added since the last read."""
        for text in self.read():
            echo(plain(text))


def follow(
    directory: Path, ended: Callable[[], int | None], explain: Callable[[], str], echo: Echo
) -> int:
    """Echoes a stage's log until its result is there; returns the exit code.

    Args:
        directory: the stage's.
        ended: queries the cluster: None while the job is queued or running, else the exit code if there is no result.
        explain: returns the cluster's message on a job without a result, for the log.
        echo: receives the log's lines, which the job has redacted.
    """
    tail = Tail(directory / "log.txt")
    polled_at = time.monotonic()
    ended_at = 0.0
    code: int | None = None
    while (result := read_result(directory)) is None:
        tail.echo(echo)
        now = time.monotonic()
        if code is None and now - polled_at >= ASK_S:
            code = ended()
            ended_at = now
            polled_at = time.monotonic()
        elif code is not None and now - ended_at > (STOPPED_S if code > 128 else DEADLINE_S):
            break
        time.sleep(LOOK_S)
    if result is None:
        text = explain().strip()
        if text:
            with (directory / "log.txt").open("a", encoding="utf-8") as log:
                log.write(f"{text}\n")
    tail.echo(echo)
    if result is None:
        return code or 0
    return result.code
