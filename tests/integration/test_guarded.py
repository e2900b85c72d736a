"""What is between a job and its supervisor loses neither a signal nor a line."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pytest

from xp.execution.launchers.node.log import LogStream, drain
from xp.lib.secrets.redaction import Redactor

ROOT = str(Path(__file__).parents[2])
WRITES_AT_ITS_END = "import sys; sys.stdin.read(); print('last', flush=True)"


def test_what_a_process_writes_just_before_its_end_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends between a look at its output, which has nothing, and the question whether it has ended."""
    command = [sys.executable, "-c", WRITES_AT_ITS_END]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        log = io.BytesIO()
        stream = LogStream(log, Redactor(), lambda _: None, on_screen=False)

        def idle() -> None:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(250)

        monkeypatch.setattr(stream, "idle", idle)
        drain(process, stream)
        stream.close()
    assert log.getvalue() == b"last\n"


SIGNALLED_BEFORE_EXEC = """
import os, signal, sys
from xp.lib import processes
once = os.setsid
def setsid():
    once()
    os.kill(os.getpid(), signal.SIGTERM)
os.setsid = setsid
sys.exit(processes.main(["1000", "sleep", "600"]))
"""


def test_a_signal_before_the_jobs_program_has_begun_ends_the_job() -> None:
    """The guard's own handlers, which do nothing, are those of the job until then."""
    command = [sys.executable, "-c", SIGNALLED_BEFORE_EXEC]
    with subprocess.Popen(command, stdin=subprocess.PIPE, cwd=ROOT) as process:
        assert process.wait(250) == 128 + 15
