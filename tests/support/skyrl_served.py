"""SkyRL's own server of vLLM on this machine's CPU, and what a client of it finds."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from xp.fields.skyrl import CPU_WORKER
from xp.lib.loopback import HOST, free_port
from xp.lib.loopback_binding import ONE_MACHINE
from xp.planning.stages import cpu_environment
from xp.worker.skyrl_names import EXTENSION

ARGUMENTS = (
    *("--host", HOST, "--dtype", "float32", "--enforce-eager"),
    *("--worker-cls", CPU_WORKER, "--worker-extension-cls", EXTENSION),
    *(
        "--weight-transfer-config",
        json.dumps({"backend": "gloo"}),
        "--logprobs-mode",
        "processed_logprobs",
    ),
    *(
        "--distributed-executor-backend",
        "mp",
        "--gpu-memory-utilization",
        "0.1",
        "--max-num-seqs",
        "8",
    ),
    *("--generation-config", "vllm", "--seed", "1"),
)


@contextmanager
def served(base: Path, log: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """SkyRL's server of a model; yields its address, and variables for its client."""
    port = free_port()
    environ = {
        **os.environ,
        **cpu_environment(1),
        ONE_MACHINE: "1",
        "PYTHONPATH": os.getcwd(),
        "TORCH_COMPILE_DISABLE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    }
    command = [
        sys.executable,
        "-m",
        "tests.engines.skyrl_server",
        "--model",
        str(base),
        "--port",
        str(port),
    ]
    with log.open("wb") as file:
        server = subprocess.Popen(
            [*command, *ARGUMENTS],
            env=environ,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        while not _answers(port):
            assert server.poll() is None, log.read_text()[-4000:]
            time.sleep(1)
        yield f"http://{HOST}:{port}", environ
    finally:
        with suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def result_of(program: str, base: Path, place: Path) -> dict[str, Any]:
    """What a client of the server of a model prints as its result.

    Args:
        program: module of the client.
        base: the model.
        place: directory for files.
    """
    with served(base, place / "server.log") as (url, environ):
        done = subprocess.run(
            [sys.executable, "-m", program, str(base), url, str(place)],
            env=environ,
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    result: dict[str, Any] = json.loads(
        next(line for line in done.stdout.splitlines() if line.startswith("RESULT"))[6:]
    )
    return result


def _answers(port: int) -> bool:
    with (
        suppress(OSError),
        urllib.request.urlopen(f"http://{HOST}:{port}/health", timeout=5) as response,
    ):
        return bool(response.status == 200)
    return False
