"""A signal that arrives in a finaliser, where Python swallows the handler's exception, ends a program nevertheless."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from xp.errors import ExitCode

ROOT = str(Path(__file__).parents[2])
FINALISER = """
import os, signal, sys, time
class Signalled:
    def __del__(self):
        os.kill(os.getpid(), {number})
def work(*_, **__):
    it = Signalled()
    del it
    time.sleep(600)
"""
STAGE = """
from xp.worker.program import run_stage
sys.exit(run_stage(work, []))
"""
PREPARE = """
from xp.tasks import prepare
prepare._read_config = work
sys.exit(prepare.main(["config.json"]))
"""
EVALUATION = """
from xp.evaluation.ending import OrderlyEnd
from xp.errors import XpError
try:
    with OrderlyEnd():
        work()
except XpError as error:
    sys.exit(int(error.code))
"""


@pytest.mark.parametrize(
    ("program", "number", "code"),
    [
        (STAGE, 15, ExitCode.TERMINATED),
        (PREPARE, 15, ExitCode.TERMINATED),
        (PREPARE, 2, ExitCode.INTERRUPTED),
        (EVALUATION, 15, ExitCode.TERMINATED),
    ],
    ids=["stage", "prepare", "prepare-int", "evaluation"],
)
def test_a_signal_in_a_finaliser_ends_the_program(program: str, number: int, code: ExitCode) -> None:
    command = [sys.executable, "-c", FINALISER.format(number=number) + program]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ}, capture_output=True, text=True, timeout=250)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
