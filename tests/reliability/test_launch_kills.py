"""A supervisor killed at any moment: the record is whole, nothing goes on running, and a resume ends the run."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from pathlib import Path

import psutil
import pytest

from tests.support.cases import few
from tests.support.launching import Supervisor, eventually, plan, run, stage
from xp.execution.record import RunStatus, read_record

STAGE = """
import os, sys, time
name, attempt = os.environ["XP_STAGE"], os.environ["XP_ATTEMPT"]
with open("began.txt", "a") as file:
    file.write(f"{attempt} {name}\\n")
time.sleep(0.15)
with open(f"{name}.part", "w") as file:
    file.write("result")
os.replace(f"{name}.part", f"{name}.done")
"""


@pytest.mark.parametrize("seed", few(range(20), 1))
def test_a_kill_at_a_random_moment_corrupts_nothing_and_leaves_nothing_running(
    tmp_path: Path, seed: int
) -> None:
    delay = random.Random(seed).uniform(0.05, 1.1)
    first = Supervisor(tmp_path, [STAGE] * 3, grace_s=0.5)
    time.sleep(delay)
    first.send(signal.SIGKILL)
    first.process.join()
    eventually(lambda: not _of(tmp_path))

    attempt = 1
    if (tmp_path / "runs/run/run.json").exists():
        attempt = 1 + len(read_record(tmp_path / "runs/run").attempts)
    # A kill between the directory and its first record leaves a run that nothing has happened to: it starts again.
    stages = [stage(f"s{number}", STAGE) for number in range(3)]
    run(plan(*stages).at(attempt), tmp_path)
    record = read_record(tmp_path / "runs/run")
    assert record.status is RunStatus.SUCCEEDED
    assert all(attempt.status is not RunStatus.RUNNING for attempt in record.attempts)
    assert [(tmp_path / f"s{number}.done").read_text() for number in range(3)] == ["result"] * 3
    began = (tmp_path / "began.txt").read_text().split("\n")
    assert len(began) == len(set(began))  # no stage of an attempt twice


def test_the_record_can_be_read_at_every_moment_of_a_run(tmp_path: Path) -> None:
    supervisor = Supervisor(tmp_path, ["pass"] * 3)
    file = tmp_path / "runs/run/run.json"
    reads = 0
    while supervisor.process.is_alive():
        if file.exists():
            assert json.loads(file.read_text())["run_id"] == "run"
            reads += 1
        time.sleep(0.001)
    assert supervisor.process.exitcode == 0
    assert reads > 100


def _of(outputs: Path) -> list[int]:
    """Processes of the run, by their working directory."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and Path(process.cwd()).is_relative_to(outputs):
                found.append(process.pid)
        except psutil.Error:
            continue
    return found
