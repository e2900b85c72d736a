"""The frame of a stage's program: one message and an exit code, whenever TERM comes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from xp.contrib.contracts.jobs import DEADLINE_S
from xp.episode.trajectory import (
    read_trajectories,
)
from xp.errors import ExitCode

PROGRAM = """
import os, signal, sys, time
from xp.worker.program import run_stage

def term():
    os.kill(os.getpid(), signal.SIGTERM)

def while_it_works(argv):
    term()

def compiles(argv):
    print(*(os.environ[name] for name in ("TORCHINDUCTOR_CACHE_DIR", "VLLM_CACHE_ROOT", "TRITON_CACHE_DIR")))

def writes_on_a_full_disk(argv):
    with open("/dev/full", "w") as file:
        file.write("words")

code = run_stage(globals()[sys.argv[1]], [])
print(code, flush=True)
if sys.argv[2:]:
    term()
"""


def ended(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


def test_term_is_told_without_a_traceback() -> None:
    done = ended("while_it_works")
    assert (done.stdout, done.stderr) == (
        f"{int(ExitCode.TERMINATED)}\n",
        "xp: this stage was stopped\n",
    )


def test_a_full_disk_without_a_files_name_is_that_of_the_outputs() -> None:
    done = ended("writes_on_a_full_disk")
    assert done.stdout == f"{int(ExitCode.RESOURCE)}\n"
    assert done.stderr == (
        f"xp: the disk of {Path.cwd()} is full; make room and resume the run"
        " (OSError: [Errno 28] No space left on device)\n"
    )


def test_compiled_code_is_below_the_outputs_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("VLLM_CACHE_ROOT", "TORCHINDUCTOR_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TRITON_CACHE_DIR", "/mine")
    monkeypatch.chdir(tmp_path)
    done = ended("compiles")
    assert done.stdout == f"{tmp_path}/cache/inductor {tmp_path}/cache/vllm /mine\n0\n", done.stderr


def test_a_second_term_ends_what_the_first_one_did_not() -> None:
    done = ended("while_it_works", "again")
    assert done.returncode == -signal.SIGTERM
    assert done.stderr == "xp: this stage was stopped\n"


KILLED = """
import sys
from pathlib import Path
sys.path[:0] = {path!r}
from tests.unit.test_episode_trajectory import a_record
from xp.episode.trajectory import TrajectoryWriter
writer = TrajectoryWriter(Path({file!r}))
number = 0
while True:
    writer.write(a_record(number))
    number += 1
    print(number, flush=True)
"""


def test_a_killed_writer_loses_nothing_that_was_written(tmp_path: Path) -> None:
    file = tmp_path / "0.jsonl"
    program = KILLED.format(path=[entry or os.getcwd() for entry in sys.path], file=str(file))
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        for _ in range(20):
            written = int(child.stdout.readline())
        child.send_signal(signal.SIGKILL)
        child.wait()
    assert len(read_trajectories(file)) >= written
