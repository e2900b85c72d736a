"""The whole of a run on two CPU processes, as a user starts it: trained, resumed, and a checkpoint of it played."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.child import json_lines
from tests.support.listeners import Listener, listeners, off_loopback
from xp.errors import ExitCode

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(1200)]

SMALL = (
    "hardware.accelerators_per_node=2",
    *("env.train.num_tasks=16", "env.held_out.num_tasks=8"),
    *("evaluation.before_training=false", "evaluation.every=1"),
    *(
        "training.num_steps=2",
        "training.prompts_per_step=4",
        "training.group_size=4",
        "training.micro_batch_size=8",
    ),
    "training.checkpoint_every=1",
)


def xp(directory: Path, *words: str, code: ExitCode = ExitCode.OK) -> set[Listener]:
    """Run a command to its end, with this exit code; returns every listener that its processes have had."""
    found: set[Listener] = set()
    with (directory / "said.txt").open("w+") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "xp", *words], cwd=directory, stdout=said, stderr=said
        )
        while process.poll() is None:
            found |= listeners(process.pid)
            time.sleep(0.1)
        said.seek(0)
        assert process.returncode == code, said.read()[-3000:]
    return found


@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_two_processes_train_and_resume_and_checkpoints_can_be_played(
    strategy: str, tmp_path: Path
) -> None:
    heard = xp(tmp_path, *SMALL, f"backend.parallel.strategy={strategy}")
    assert heard, "gloo's own sockets, at the least"
    assert len({port for _, _, port in off_loopback(heard)}) <= 1, (
        "torch's own store, at the port of the group"
    )
    (run,) = (tmp_path / "outputs/runs").iterdir()
    xp(
        tmp_path,
        f"resume={run.name}",
        "training.num_steps=3",
        "training.max_hours=0.0001",
        code=ExitCode.LIMIT,
    )
    assert "the training ends after step 2" in (run / "attempt_2/train/log.txt").read_text()
    xp(tmp_path, f"resume={run.name}", "training.num_steps=3", "training.max_hours=null")
    xp(tmp_path, "eval", f"run={run.name}@1")
    lines = json_lines(run / "metrics.jsonl")
    trained = [
        (line["attempt"], line["step"], line["episodes/num"])
        for line in lines
        if line["stage"] == "train"
    ]
    assert trained == [(1, 1, 16), (1, 2, 16), (3, 3, 16)]
    during = [
        (line["attempt"], line["step"]) for line in lines if line["stage"] == "evaluate_during"
    ]
    assert during == [(1, 1), (1, 2), (3, 2), (3, 3)]
    log = (run / "attempt_3/train/log.txt").read_text()
    assert "checkpoints/checkpoint-2" in log
    files = sorted(file.name for file in (run / "attempt_1/train/trajectories").glob("*.jsonl"))
    assert files == ["train.jsonl", "train.rank_1.jsonl"]
    (file,) = (tmp_path / "outputs/evaluations").glob("*/eval.json")
    assert json.loads(file.read_text())["num_played"] == 8
