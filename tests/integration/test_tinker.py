"""Whole runs of backend=tinker on SkyRL's server, with lost requests, refusals, a killed stage and a server that restarts."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from tests.support.child import ended, json_lines
from tests.support.http_server import Reply, Request
from tests.support.tinker_server import (
    KEY,
    PYTHON,
    TinkerServer,
    needs_entry_point,
    needs_server,
    proxy,
    start,
    stop,
    tinker_server,
)

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    needs_entry_point,
    needs_server,
]
NUM_STEPS = 3
WORDS = (
    *("backend=tinker", f"backend.runtime.python={PYTHON}", "model.lora.rank=8"),
    # An untrained model wins nothing, and equal rewards teach nothing: lengths differ.
    *(
        "env.reward_fn=tools.gpu.reward:length",
        "env.train.num_tasks=16",
        "env.held_out.num_tasks=8",
    ),
    *("training.prompts_per_step=2", "training.group_size=4", f"training.num_steps={NUM_STEPS}"),
    *(
        "training.checkpoint_every=1",
        "training.max_response_tokens=60",
        "training.warmup_updates=0",
    ),
    "hardware.usd_per_million_tokens={prompt: 1.0, sampled: 2.0, trained: 3.0}",
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TinkerServer]:
    with tinker_server(tmp_path_factory.mktemp("server")) as running:
        yield running


def begin(directory: Path, url: str, *words: str) -> subprocess.Popen[str]:
    environ = {**os.environ, "TINKER_BASE_URL": url, "TINKER_API_KEY": KEY}
    return subprocess.Popen(
        [sys.executable, "-m", "xp", *words, f"outputs={directory}"],
        env=environ,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def xp(directory: Path, url: str, *words: str) -> tuple[int, str]:
    process = begin(directory, url, *words)
    output, _ = process.communicate(timeout=3000)
    return process.returncode, output


def the_run(directory: Path) -> Path:
    (run,) = (directory / "runs").iterdir()
    return run


def lines(run: Path, stage: str = "train") -> list[dict[str, Any]]:
    read = json_lines(run / "metrics.jsonl")
    return [line for line in read if line["stage"] == stage]


def updates(server: TinkerServer) -> Counter[str]:
    """Model of the server -> number of its updates that were made."""
    with sqlite3.connect(server.directory / "requests.db") as database:
        rows = database.execute(
            "select model_id from futures where lower(request_type) = 'optim_step'"
            " and lower(status) = 'completed'"
        )
        return Counter(model for (model,) in rows)


def check_finished(run: Path) -> None:
    """Every step has a line, every update a gradient, and the model is not the one of the start."""
    train = lines(run)
    assert [line["step"] for line in train] == list(range(1, NUM_STEPS + 1))
    assert all(line["training/updates"] == 1.0 for line in train)
    assert all(line["training/logprob_gap"] < 1e-4 for line in train)
    assert all(line["cost/usd"] > 0 for line in train)
    assert all(line["time/weight_sync_s"] > 0 for line in train)
    assert json.loads((run / "attempt_1/evaluate/before/eval.json").read_text())
    adapters = load_file(run / "model/adapter/adapter_model.safetensors")
    assert any(tensor.abs().max() > 0 for name, tensor in adapters.items() if "lora_B" in name)
    assert (run / "model/model.safetensors").is_file()


def test_a_run_has_the_records_of_every_trainer_and_no_secret(
    server: TinkerServer, tmp_path: Path
) -> None:
    code, output = xp(tmp_path, server.url, *WORDS)
    assert code == 0, output
    run = the_run(tmp_path)
    check_finished(run)
    assert json.loads((run / "attempt_1/evaluate/after/eval.json").read_text())
    (last,) = lines(run, "evaluate_after")
    assert last["cost/sampled_tokens"] > 0
    secrets = (KEY.encode(), server.url.encode())
    leaks = [
        file
        for file in run.rglob("*")
        # The code that is kept has this test's key.
        if file.is_file() and "code" not in file.relative_to(run).parts
        if any(secret in file.read_bytes() for secret in secrets)
    ]
    assert leaks == []


def test_lost_and_refused_requests_cost_nothing_and_train_nothing_twice(
    server: TinkerServer, tmp_path: Path
) -> None:
    before = updates(server)
    seen: Counter[str] = Counter()
    lock = threading.Lock()

    def fault(request: Request, ask: Callable[[], Reply]) -> Reply:
        name = request.path.rpartition("/")[2]
        with lock:
            seen[name] += 1
            number = seen[name]
        if name in ("forward_backward", "optim_step"):
            if number % 4 == 1:
                return Reply({"detail": "too many"}, 429)
            if number % 4 == 2:
                ask()  # done, and the answer is lost
                raise OSError("dropped")
        if name == "asample" and number % 7 == 3:
            return Reply({"detail": "busy"}, 429)
        if name == "retrieve_future" and number % 9 == 4:
            return Reply({"detail": "no backend"}, 503)
        return ask()

    with proxy(server, fault) as url:
        code, output = xp(tmp_path, url, *WORDS)
    assert code == 0, output
    check_finished(the_run(tmp_path))
    assert sorted((updates(server) - before).values()) == [3, NUM_STEPS], (
        "the probe's and the run's"
    )


def test_a_killed_stage_is_resumed_from_its_checkpoint_with_its_optimizer(
    server: TinkerServer, tmp_path: Path
) -> None:
    process = begin(tmp_path, server.url, *WORDS)
    deadline = time.monotonic() + 2400
    checkpoint = "*/checkpoints/step-1/digests.json"
    while not list((tmp_path / "runs").glob(checkpoint)):
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.2)
    run = the_run(tmp_path)
    (stage,) = children(process.pid, "xp.contrib.tinker.worker.train")
    os.kill(stage, signal.SIGKILL)
    output, _ = process.communicate(timeout=300)
    assert process.returncode != 0, output
    made = len(lines(run))
    code, output = xp(tmp_path, server.url, f"resume={run.name}")
    assert code == 0, output
    check_finished(run)
    assert "continuing from" in (run / "attempt_2/train/log.txt").read_text()
    assert 1 <= made < NUM_STEPS


def test_a_server_that_is_lost_ends_the_stage_and_the_run_goes_on_with_a_new_one(
    tmp_path: Path,
) -> None:
    server = start(tmp_path / "server")
    try:
        words = (*WORDS, "backend.overrides.deadline_s=120.0")
        process = begin(tmp_path / "outputs", server.url, *words)
        deadline = time.monotonic() + 2400
        while not list((tmp_path / "outputs/runs").glob("*/checkpoints/step-1/digests.json")):
            assert process.poll() is None, process.communicate()[0]
            assert time.monotonic() < deadline
            time.sleep(0.2)
        stop(server)
        output, _ = process.communicate(timeout=900)
        assert process.returncode == 13, output
        port = int(server.url.rpartition(":")[2])
        server = start(tmp_path / "server", port=port)
        run = the_run(tmp_path / "outputs")
        code, output = xp(tmp_path / "outputs", server.url, f"resume={run.name}")
        assert code == 0, output
        check_finished(run)
    finally:
        stop(server)


@pytest.mark.parametrize(
    ("words", "environ", "code", "said"),
    [
        ((), {"TINKER_API_KEY": "tml-another"}, 4, "refuses TINKER_API_KEY"),
        (
            ("backend.overrides.base_model=Org/Other",),
            {},
            3,
            "does not serve it; it serves models/",
        ),
        ((), {"TINKER_BASE_URL": "http://127.0.0.1:9"}, 3, "no service answers"),
    ],
)
def test_a_service_that_does_not_fit_ends_before_tasks_are_prepared(
    server: TinkerServer,
    tmp_path: Path,
    words: tuple[str, ...],
    environ: dict[str, str],
    code: int,
    said: str,
) -> None:
    done = ended(
        [sys.executable, "-m", "xp", *WORDS, *words, f"outputs={tmp_path}"],
        env={**os.environ, **server.environ, **environ},
    )
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert not (tmp_path / "tasks").exists()


def children(pid: int, word: str) -> list[int]:
    """Processes below one whose command has a word; not those that start them."""
    import psutil

    return [
        child.pid
        for child in psutil.Process(pid).children(recursive=True)
        if word in child.cmdline() and not any("processes.py" in part for part in child.cmdline())
    ]
