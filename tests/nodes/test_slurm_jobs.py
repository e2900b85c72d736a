"""Job arrays of sweeps, and jobs that are queued again, on a real Slurm of two nodes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest

from tests.nodes.conftest import DEADLINE_S, QUICK, SMALL, xp
from tests.support.child import ended, json_lines
from tests.support.launching import eventually, launcher_spec, plan, stage
from xp.contrib.contracts.launcher import LauncherSuite
from xp.execution.launchers.slurm import SlurmLauncher
from xp.execution.supervise import dispatch
from xp.planning.job import Resources, Stage

SWEEP = (
    "launcher=slurm",
    "launcher.detach=true",
    "launcher.array=true",
    "launcher.array_at_once=1",
)


def runs(*words: str) -> str:
    return ended([sys.executable, "-m", "xp", "runs", *words]).stdout


def test_a_sweep_is_one_array_whose_tasks_run_one_at_a_time(tmp_path: Path) -> None:
    outputs = tmp_path / "outputs"
    small = (
        "hardware.num_cpus=1",
        "hardware.memory_gb=3",
        "training.num_steps=1",
        "env.held_out.num_tasks=16",
    )
    said = xp(outputs, "-m", *SWEEP, *small, "seed=1,2")
    jobs = {*re.findall(r"submitted as slurm job (\d+_\d+)", said)}
    (array,) = {job.partition("_")[0] for job in jobs}
    assert jobs == {f"{array}_0", f"{array}_1"}
    found = sorted((outputs / "runs").iterdir())
    eventually(
        lambda: all((run / "attempt_1/evaluate/result.json").exists() for run in found), DEADLINE_S
    )
    spans = []
    for run in found:
        runs("show", run.name, f"outputs={outputs}")
        assert json.loads((run / "run.json").read_text())["status"] == "succeeded"
        first = (run / "attempt_1/prepare/claim.json").stat().st_mtime
        last = json.loads((run / "attempt_1/evaluate/result.json").read_text())["ended"]
        spans.append((first, datetime.fromisoformat(last).timestamp()))
    (_, end), (begin, _) = sorted(spans)
    assert begin > end, "array_at_once=1"


def test_a_node_that_fails_ends_the_other_and_gives_the_exit_code(tmp_path: Path) -> None:
    code = """
import os, sys, time
if os.environ["XP_NODE"] == "1":
    while not os.path.exists("node_0_waits"): time.sleep(0.05)
    print("node 1 fails", flush=True)
    sys.exit(21)
print("node 0 waits at", os.environ["XP_MAIN_NODE"], flush=True)
open("node_0_waits", "w").close()
time.sleep(10000)
"""
    spec = launcher_spec("slurm", grace_s=1.0)
    launcher = SlurmLauncher(spec, tmp_path / "outputs")
    job = replace(stage("train", code).job, resources=Resources("cpu", 0, 2, 1, 1.0))
    one = Stage("train", job)
    screen: list[str] = []
    with pytest.raises(Exception, match="stage train failed") as caught:
        dispatch(plan(one).by(spec), launcher, tmp_path / "outputs", echo=screen.append)  # type: ignore[arg-type]
    assert caught.value.code == 21
    assert "node 1 fails" in "".join(screen)
    assert "node 0 waits at 10.77.0.1:" in "".join(screen)


def test_a_time_limit_reaches_all_nodes_which_run_again(tmp_path: Path) -> None:
    code = """
import os, signal, sys, time
node, count = os.environ["XP_NODE"], os.environ.get("SLURM_RESTART_COUNT", "0")
def save(*_):
    open(f"saved_{node}", "w").close()
    time.sleep(1)
    sys.exit(143)
signal.signal(signal.SIGTERM, save)
open(f"up_{node}_{count}", "w").close()
while not os.path.exists(f"saved_{node}"): time.sleep(0.05)
print("node", node, "goes on", flush=True)
"""
    outputs = tmp_path / "outputs"
    spec = launcher_spec("slurm", grace_s=10.0)
    launcher = SlurmLauncher(spec, outputs)
    job = replace(stage("train", code).job, resources=Resources("cpu", 0, 2, 1, 1.0))
    context = LauncherSuite.make_context(tmp_path)
    launch = launcher.submit(Stage("train", job), context)
    eventually(lambda: (outputs / "up_0_0").exists() and (outputs / "up_1_0").exists(), DEADLINE_S)
    subprocess.run(
        ["scancel", "--batch", "--signal=USR1", launch.native_id], check=True
    )  # as a minute before the limit
    assert launcher.wait(launch, lambda _: None) == 0
    assert (outputs / "saved_0").exists()
    assert (outputs / "saved_1").exists()
    log = (outputs / launch.log).read_text()
    assert "node 0 goes on" in log
    assert "node 1 goes on" in log


def test_a_requeued_training_on_two_nodes_continues(tmp_path: Path) -> None:
    outputs = tmp_path / "outputs"
    codes = []
    words = (
        "launcher=slurm",
        *SMALL,
        *QUICK,
        "training.num_steps=8",
        "training.checkpoint_every=1",
    )
    argv = [sys.executable, "-m", "xp", f"outputs={outputs}", *words]
    running = threading.Thread(
        target=lambda: codes.append(subprocess.run(argv, env={**os.environ}).returncode)
    )
    running.start()
    eventually(
        lambda: list(outputs.glob("runs/*/checkpoints/checkpoint-*/trainer_state.json")), DEADLINE_S
    )
    (submitted,) = outputs.glob("runs/*/attempt_1/train/submitted.json")
    native_id = json.loads(submitted.read_text())[0]["native_id"]
    time.sleep(3)
    subprocess.run(["scontrol", "requeue", native_id], check=True)
    running.join(DEADLINE_S)
    assert codes == [0]
    log = submitted.with_name("log.txt").read_text()
    assert "continuing from" in log
    metrics = json_lines(submitted.parents[2].joinpath("metrics.jsonl"))
    assert max(one.get("step", 0) for one in metrics) == 8
