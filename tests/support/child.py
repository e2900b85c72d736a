"""Programs of tests in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from xp.__main__ import main
from xp.contrib.contracts.jobs import DEADLINE_S


def ended(
    command: Sequence[str | Path],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    check: bool = False,
    timeout: float | None = None,
    given: str | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, and read what it says."""
    return subprocess.run(
        command,
        cwd=cwd,
        env=env,
        capture_output=True,
        text=True,
        check=check,
        timeout=timeout,
        input=given,
    )


def json_lines(file: Path) -> list[Any]:
    return [json.loads(line) for line in file.read_text().splitlines()]


class Fork:
    """A function as a program of its own: a fork of this process, which has imported everything already.

    Args:
        program: returns the exit code, or None for 0.
        cwd: its working directory.
        environ: variables beside those of this process.
    """

    def __init__(
        self,
        program: Callable[[], int | None],
        cwd: Path,
        environ: Mapping[str, str] = {},
    ) -> None:
        pipes = [os.pipe(), os.pipe()]
        self.out, self.err = (os.fdopen(reader) for reader, _ in pipes)
        writers = [writer for _, writer in pipes]
        self.process = get_context("fork").Process(
            target=_run, args=(program, cwd, environ, writers)
        )
        self.process.start()
        for writer in writers:
            os.close(writer)

    def send(self, number: int) -> None:
        os.kill(self.process.pid or 0, number)

    def end(self) -> subprocess.CompletedProcess[str]:
        """Waits for its end; returns the exit code with the rest of its output."""
        too_late = threading.Timer(DEADLINE_S, self.process.kill)
        too_late.start()
        with self.out, self.err, ThreadPoolExecutor(1) as pool:
            errors = pool.submit(self.err.read)
            output = self.out.read()
            self.process.join()
        too_late.cancel()
        return subprocess.CompletedProcess((), self.process.exitcode or 0, output, errors.result())


def _run(
    program: Callable[[], int | None], cwd: Path, environ: Mapping[str, str], writers: list[int]
) -> None:
    os.setsid()
    os.chdir(cwd)
    os.environ.update(environ)
    for number, writer in enumerate(writers, start=1):
        os.dup2(writer, number)
        os.close(writer)
    sys.stdout, sys.stderr = (open(number, "w", closefd=False) for number in (1, 2))  # noqa: SIM115
    sys.exit(program())


def xp(*words: str, cwd: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """Runs a command of xp in a directory, as `python -m xp` does there."""

    def command() -> int:
        sys.path.insert(0, str(cwd))
        return main(words)

    return Fork(command, cwd, environ).end()
