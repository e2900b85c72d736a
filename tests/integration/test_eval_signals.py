"""Signals stop `xp eval` and `tasks profile` and their server, a stub for vLLM (fake_vllm) that hangs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.support.launching import DEADLINE_S, eventually, is_alive
from xp.composition import compose
from xp.errors import ExitCode
from xp.results.evaluation.local import ensure_made
from xp.worker.places import model_place

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(900)]

FAKE = Path(__file__).parents[1] / "trainers/fake_vllm"
START_S = 2 * DEADLINE_S
"""For two programs that import torch, one after the other."""


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An outputs root that has the model."""
    outputs = tmp_path_factory.mktemp("outputs")
    spec = compose([f"outputs={outputs}"])
    ensure_made(spec, str(outputs / model_place(spec.model)))
    return outputs


EVAL = ("eval", "evaluation.num_tasks=1", "eval.tasks=all", "--again")
PROFILE = ("tasks", "profile", "--tries", "2")


def evaluate(
    outputs: Path, asked: Path, command: tuple[str, ...], *before: str
) -> subprocess.Popen[str]:
    words = [*command, "env=multiply", "model=tiny", "eval.engine=vllm", f"outputs={outputs}"]
    path = os.pathsep.join(filter(None, (str(FAKE), os.environ.get("PYTHONPATH"))))
    return subprocess.Popen(
        [*before, sys.executable, "-m", "xp", *words],
        env={**os.environ, "PYTHONPATH": path, "FAKE_VLLM_HANGS": str(asked)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def server_of(command: subprocess.Popen[str], asked: Path) -> list[psutil.Process]:
    """The server and its worker, when the server was asked for a completion."""

    def is_asked() -> bool:
        assert command.poll() is None, command.communicate()[1]
        return asked.exists()

    eventually(is_asked, START_S)
    return [psutil.Process(int(one)) for one in asked.read_text().split()]


@pytest.fixture
def running(
    outputs: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[subprocess.Popen[str]]:
    command = evaluate(outputs, tmp_path / "asked", *request.param)
    try:
        yield command
    finally:
        command.kill()
        command.wait()


PLAIN = (EVAL,)
BACKGROUND = (EVAL, "sh", "-c", "trap '' INT; exec \"$@\"", "sh")
"""Words of xp, then those that start it as a script's `&` does."""


@pytest.mark.parametrize(
    ("running", "sent", "code", "told"),
    [
        (PLAIN, signal.SIGTERM, ExitCode.TERMINATED, "xp: stopped by SIGTERM"),
        (PLAIN, signal.SIGKILL, -signal.SIGKILL, ""),
        (BACKGROUND, signal.SIGINT, ExitCode.INTERRUPTED, "xp: stopped by SIGINT"),
        ((PROFILE,), signal.SIGTERM, ExitCode.TERMINATED, "xp: stopped by SIGTERM"),
    ],
    indirect=["running"],
    ids=["TERM", "KILL", "INT-of-a-background-job", "TERM-of-a-profile"],
)
def test_a_signal_ends_an_evaluation_and_its_server(
    running: subprocess.Popen[str], sent: signal.Signals, code: int, told: str, tmp_path: Path
) -> None:
    server = server_of(running, tmp_path / "asked")
    running.send_signal(sent)
    error = running.communicate(timeout=DEADLINE_S)[1]
    assert running.returncode == code, error
    assert told in error
    if sent != signal.SIGKILL:
        assert not server[
            0
        ].is_running()  # the command itself has ended it, and has killed its worker
    eventually(lambda: not any(is_alive(one.pid) for one in server))
