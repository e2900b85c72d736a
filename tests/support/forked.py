"""A stage's program in a fork of this process, which has imported the trainer already: seconds instead of a minute."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from multiprocessing import get_context
from pathlib import Path

from tests.support.jobs import leave_files
from xp.planning.job import Stage


def run_forked(program: Callable[[], int], log: Path) -> None:
    """Runs a function that returns an exit code; its output is in `log`. Fails with the end of it unless it is 0."""

    def process() -> None:
        with log.open("w") as opened:
            os.dup2(opened.fileno(), 1)
            os.dup2(opened.fileno(), 2)
        sys.exit(program())

    child = get_context("fork").Process(target=process)
    child.start()
    child.join()
    assert child.exitcode == 0, log.read_text()[-5000:]


def in_stage(
    stage: Stage, outputs: Path, environ: Mapping[str, str], program: Callable[[list[str]], int]
) -> Callable[[], int]:
    """A function that puts a stage's files in place and runs its program, as the local launcher does."""

    def run() -> int:
        leave_files(outputs, stage.job)
        os.chdir(outputs)
        os.environ.update({**environ, **stage.job.env})
        return program([stage.job.argv[-1]])

    return run
