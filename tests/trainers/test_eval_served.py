"""Models behind a real server, `transformers serve` on the CPU, evaluated on two environments by `xp eval`."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.smollm2 import smollm2
from xp.__main__ import main
from xp.backends.stages.model import model_place
from xp.compose import compose
from xp.errors import ExitCode
from xp.evaluation.local import ensure_made

pytestmark = [pytest.mark.slow, pytest.mark.integration, pytest.mark.timeout(3600)]

START_S = 900.0
PLAY = (
    *("eval.tasks=all", "evaluation.num_tasks=4", "evaluation.samples_per_task=2", "eval.concurrency=4"),
    # The server drops the line where a model writes a call that is no JSON: such an episode is void.
    *("model.max_tokens=96", "model.max_attempts=2", "training.max_void_fraction=1"),
)


def embedded(directory: Path) -> Path:
    """The model of the default, as its stage makes it."""
    spec = compose([f"outputs={directory}"])
    place = directory / model_place(spec.model)
    ensure_made(spec, str(place))
    return place


@contextmanager
def served(model: Path, log: Path) -> Iterator[str]:
    """`transformers serve` of this model on a free port of 127.0.0.1; yields its URL."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program = Path(sys.executable).with_name("transformers")
    command = [str(program), "serve", str(model), "--host", "127.0.0.1", "--port", str(port), "--device", "cpu"]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env={**os.environ, "HF_HUB_OFFLINE": "1"})
        try:
            _wait(f"http://127.0.0.1:{port}/health", process, log)
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + START_S
    while time.monotonic() < until:
        assert process.poll() is None, log.read_text()[-3000:]
        try:
            with urllib.request.urlopen(url, timeout=10):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
    raise AssertionError(log.read_text()[-3000:])


@pytest.mark.parametrize(
    ("make", "tools", "envs"),
    [(embedded, "native", ["multiply", "whodunit_mini"]), (smollm2, "text", ["echo", "multiply"])],
)
def test_a_model_behind_transformers_serve_is_evaluated_on_two_environments(
    make: Any, tools: str, envs: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model = make(tmp_path)
    with served(model, tmp_path / "serve.txt") as url:
        words = [
            f"env={','.join(envs)}",
            "model=endpoint",
            f"model.url={url}",
            f"model.name={model}",
            f"model.tools={tools}",
        ]
        assert main(["eval", *words, *PLAY, f"outputs={tmp_path / 'outputs'}"]) == ExitCode.OK
    print(capfd.readouterr().out)
    results = [json.loads(file.read_text()) for file in (tmp_path / "outputs/evaluations").glob("*/eval.json")]
    assert sorted(one["env"] for one in results) == envs
    for one in results:
        assert one["status"] == "finished"
        assert one["num_played"] == one["num_asked"] > 0
        assert sum(one["summary"]["statuses"].values()) == one["num_asked"]
    assert any(one["summary"]["num_void"] < one["num_asked"] for one in results)
