"""Models on vLLM and on SGLang on this machine's CPU, evaluated by `xp eval`.

    VLLM_PYTHON=.venv-vllm/bin/python .venv/bin/python -m pytest -s -m slow tests/integration/test_eval_served.py

`make test-vllm` does that, and `make test-sglang` likewise with SGLANG_PYTHON: xp stays in its own Python, the server
in its own, as users have them.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest

from tests.support.listeners import listeners, off_loopback
from xp.__main__ import main
from xp.composition import compose
from xp.errors import ExitCode, XpError
from xp.lib.loopback import HOST, free_port
from xp.planning.engine_arguments import ON_CPU, sglang_arguments
from xp.results.evaluation.local import ensure_made
from xp.worker.engines.conversation import GenerationRequest
from xp.worker.engines.sglang import SGLangClient, running
from xp.worker.places import model_place
from xp.worker.token_budget import evaluation_sampling

pytestmark = [pytest.mark.slow, pytest.mark.integration, pytest.mark.timeout(3600)]

VARIABLE = "VLLM_PYTHON"
STAND_INS = Path(__file__).resolve().parents[1] / "trainers/slime_stubs"
START_S = 1200.0
PLAY = (
    "eval.tasks=all",
    "evaluation.num_tasks=8",
    "evaluation.samples_per_task=2",
    "eval.concurrency=4",
)


def vllm(model: Path, port: int) -> list[str]:
    """The command of `vllm serve`, which reads tool calls out of what a model writes."""
    python = os.environ.get(VARIABLE)
    if python is None:
        pytest.skip(f"needs {VARIABLE}=a Python with vLLM: make test-vllm")
    size = (
        "--max-model-len",
        "1024",
        "--max-num-seqs",
        "4",
        "--gpu-memory-utilization",
        "0.1",
        "--enforce-eager",
    )
    calls = (
        "--enable-auto-tool-choice",
        "--tool-call-parser",
        "hermes",
        "--generation-config",
        "vllm",
    )
    program = str(Path(python).absolute().with_name("vllm"))
    place = ("--served-model-name", "served", "--host", HOST, "--port", str(port))
    return [program, "serve", str(model), *place, *size, *calls]


def sglang_python(place: Path) -> str:
    """A program that is SGLang's Python, with stubs for what its imports need of a GPU, and no sound."""
    python = os.environ.get("SGLANG_PYTHON")
    if python is None:
        pytest.skip("needs SGLANG_PYTHON=a Python with SGLang: make test-sglang")
    (place / "modules").mkdir()
    (place / "modules/soundfile.py").touch()
    path = f"{STAND_INS}:{place}/modules"
    program = place / "python"
    program.write_text(
        f'#!/bin/sh\nexport PYTHONPATH={path}:"$PYTHONPATH" SLIME_ACCELERATOR=none-here OMP_NUM_THREADS=1\n'
        f'exec {Path(python).absolute()} "$@"\n'
    )
    program.chmod(0o755)
    return str(program)


def sglang(python: str, model: Path, port: int) -> list[str]:
    """The command of SGLang's own server, which reads tool calls out of what a model writes."""
    place = (
        "--model-path",
        str(model),
        "--served-model-name",
        "served",
        "--host",
        HOST,
        "--port",
        str(port),
    )
    size = (
        "--max-total-tokens",
        "20000",
        "--mem-fraction-static",
        "0.1",
        "--context-length",
        "1024",
    )
    calls = ("--tool-call-parser", "qwen25", "--sampling-defaults", "openai", "--dtype", "float32")
    return [python, "-m", "sglang.launch_server", *place, *size, *calls, *ON_CPU]


@contextmanager
def served(command: list[str], port: int, log: Path) -> Iterator[str]:
    """A server of a model on this port of 127.0.0.1; yields its URL."""
    with log.open("wb") as output:
        environ = {**os.environ, "HF_HUB_OFFLINE": "1", "SGLANG_USE_CPU_ENGINE": "1"}
        environ["SGLANG_GRPC_PORT"] = str(free_port())
        process = subprocess.Popen(
            command, stdout=output, stderr=output, env=environ, start_new_session=True
        )
        try:
            _wait(f"http://{HOST}:{port}/health", process, log)
            yield f"http://{HOST}:{port}/v1"
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
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


def results_in(outputs: Path) -> dict[tuple[str, str], Any]:
    """Content of eval.json by what played (`vllm`, `transformers`, `endpoint`) and environment."""
    values = [
        json.loads(file.read_text()) for file in (outputs / "evaluations").glob("*/eval.json")
    ]
    return {(one["playing"].get("engine", one["model"]["kind"]), one["env"]): one for one in values}


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_the_default_model_earns_the_same_on_an_engine(
    engine: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    spec = compose([f"outputs={tmp_path}"])
    model = tmp_path / model_place(spec.model)
    ensure_made(spec, str(model))
    asked = (*PLAY, "evaluation.temperature=0", f"outputs={tmp_path}")
    port = free_port()
    if engine == "vllm":
        command = vllm(model, port)
        python = os.environ[VARIABLE]
    else:
        python = sglang_python(tmp_path)
        command = sglang(python, model, port)
    with served(command, port, tmp_path / "serve.txt") as url:
        words = ["model=endpoint", f"model.url={url}", "model.name=served", "model.max_tokens=96"]
        assert main(["eval", "env=whodunit_mini,multiply", *words, *asked]) == ExitCode.OK
    own = ["eval", "env=whodunit_mini", "model=tiny", *asked]
    size = ("backend.engine.eager=true", "backend.engine.memory_fraction=0.1")
    assert main([*own, *size, f"eval.engine={engine}", f"eval.python={python}"]) == ExitCode.OK
    assert main(own) == ExitCode.OK
    print(capfd.readouterr().out)
    found = results_in(tmp_path)
    for name in ("endpoint", engine):
        assert_same(found[name, "whodunit_mini"], found["transformers", "whodunit_mini"])
    assert found["endpoint", "multiply"]["status"] == "finished"


def assert_same(one: Any, here: Any) -> None:
    """Greedy play of the same weights; two engines may round a tie differently."""
    assert one["num_played"] == 16
    assert one["summary"]["num_void"] == 0
    assert one["summary"]["tool_calls_mean"] >= 1
    same = [
        one["tasks"][task]["rewards"] == other["rewards"] for task, other in here["tasks"].items()
    ]
    assert sum(same) >= 7, (one["tasks"], here["tasks"])


def test_xps_sglang_server_needs_a_key_and_listens_on_loopback(tmp_path: Path) -> None:
    python = sglang_python(tmp_path)
    spec = compose([f"outputs={tmp_path}", "backend.engine.memory_fraction=0.1"])
    model = tmp_path / model_place(spec.model)
    ensure_made(spec, str(model))
    log = tmp_path / "sglang.log"
    with running(
        sglang_arguments(spec),
        str(model),
        "",
        log,
        python,
    ) as (url, key):
        sampling = evaluation_sampling(spec)
        with pytest.raises(XpError, match="401"):
            SGLangClient(url, sampling, [2], str(log)).answer(GenerationRequest([7, 8], 3, 1))
        written = SGLangClient(url, sampling, [2], str(log), key=key).answer(
            GenerationRequest([7, 8], 3, 1)
        )
        assert 0 < len(written.ids) == len(written.logprobs) <= 3
        processes = psutil.Process().children(recursive=True)
        assert [one.cmdline() for one in processes if key in " ".join(one.cmdline())] == []
        found = listeners(os.getpid())
        port = urlsplit(url).port
        assert port in {one for _, _, one in found}
        assert port not in {one for _, _, one in off_loopback(found)}
    assert key not in log.read_text()
