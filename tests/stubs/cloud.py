"""Common parts of the stubs for clouds: a worker that goes on alone, and its log."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Collection
from pathlib import Path


def start_worker(
    directory: Path, program: str, *arguments: object, passes: Collection[str] = ()
) -> None:
    """Starts `PROGRAM STATE work ...` with a container's environment, which has nothing of the user's shell."""
    names = ("PATH", "HOME", "LANG", *passes)
    with (directory / "log").open("wb") as log:
        worker = subprocess.Popen(
            [sys.executable, program, *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={name: os.environ[name] for name in names if name in os.environ},
        )
    (directory / "pid").write_text(str(worker.pid))


def tail(directory: Path, has_ended: Callable[[], bool]) -> None:
    """Prints the worker's log until it has ended."""
    position = 0
    is_over = False
    while True:
        with (directory / "log").open("rb") as log:
            log.seek(position)
            data = log.read()
        position += len(data)
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        if is_over:
            return
        is_over = has_ended()
        time.sleep(0.05)


def replace_text(file: Path, text: str) -> None:
    """Writes a file that another process reads at any time."""
    file.with_suffix(".part").write_text(text)
    file.with_suffix(".part").rename(file)
