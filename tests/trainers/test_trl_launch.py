"""The program that starts the others: the code of a rank that failed is the stage's, and TERM leaves nobody behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.support.jobs import train_job
from tests.support.launching import DEADLINE_S, eventually, is_alive
from tests.support.sections import with_model
from xp.backends.trl.worker.config import TRLTrainConfig
from xp.composition import compose
from xp.worker.places import RunPaths

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1500)]
FAKE = Path(__file__).parent / "fake_vllm"


def launched(directory: Path, *overrides: str, base_model: str = "none") -> subprocess.Popen[str]:
    """The train stage's own command, with the files that the plan holds."""
    job = train_job(compose(overrides), RunPaths(str(directory), 1, f"{directory}/tasks"))
    for path, text in job.files.items():
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        if path.endswith("/train/config.json"):
            text = with_model(TRLTrainConfig.from_json(text), base_model).to_json()
        Path(path).write_text(text)
    environ = {**os.environ, **job.env, "PYTHONPATH": f"{FAKE}{os.pathsep}{os.getcwd()}"}
    return subprocess.Popen(
        [sys.executable, *job.argv[1:]],
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["fsdp2", "ddp"])
def test_a_fault_of_the_ranks_is_the_stages_and_has_no_traceback(
    strategy: str, tmp_path: Path
) -> None:
    two = (
        "hardware.accelerators_per_node=2",
        "training.micro_batch_size=32",
        f"backend.parallel.strategy={strategy}",
    )
    process = launched(tmp_path, *two)
    _, errors = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 6  # ExitCode.TASKS: there is no task set
    assert "xp: " in errors
    assert "Traceback" not in errors


@pytest.mark.slow
def test_term_ends_a_server_that_is_still_coming_up(tmp_path: Path) -> None:
    separate = (
        "hardware=a100x2",
        "model=tiny",
        "backend.engine.placement=separate",
        "backend.engine.accelerators=1",
    )
    process = launched(tmp_path, *separate, base_model="silent")
    log = tmp_path / "attempt_1/train/vllm.log"
    eventually(lambda: log.is_file() and log.read_text().endswith("\n"))
    assert json.loads(log.read_text().splitlines()[0])["devices"] == "1"
    children = (
        one for one in psutil.process_iter(["cmdline", "ppid"]) if one.info["ppid"] == process.pid
    )
    (server,) = (one.pid for one in children if "serve" in (one.info["cmdline"] or ()))
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 143
    assert "Traceback" not in errors
    assert not is_alive(server)
