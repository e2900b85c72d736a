"""Slime's whole train.py with real Ray, its own router, and SGLang's real server that its own engine starts.

Only Megatron's training is left out, by Slime's own switch (make test-sglang).
"""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import requests

from tests.support.jobs import train_job
from tests.support.listeners import listeners, off_loopback
from tests.support.slime_engine import ON_CPU, needs_server
from tests.support.slime_rehearsal import GROUP, PROMPTS, STEPS, run, spec_of, start
from tests.trainers.slime_setup import needs_slime, tiny_directory
from xp.backends.slime.worker.config import SlimeTrainConfig
from xp.lib.loopback import free_port
from xp.planning.job import Job
from xp.planning.stages import prepare_stage, task_set_place
from xp.worker.places import RunPaths

pytestmark = [needs_slime, needs_server, pytest.mark.slow, pytest.mark.timeout(1800)]


def on_cpu(job: Job, root: Path) -> Job:
    """The same job, with SGLang on the CPU and without Megatron."""
    (name,) = (word for word in job.argv if word.endswith("/config.json"))
    config = SlimeTrainConfig.from_json(job.files[name])
    flags = (*config.command.flags, *ON_CPU, "--debug-rollout-only")
    config = replace(config, command=replace(config.command, flags=flags))
    # Reads and writes sound: SGLang imports it with its server, and a text model needs none.
    (root / "modules").mkdir()
    (root / "modules/soundfile.py").touch()
    own = {"SGLANG_USE_CPU_ENGINE": "1", "SGLANG_GRPC_PORT": str(free_port())}
    return replace(
        job,
        files={**job.files, name: config.to_json()},
        env={**job.env, **own},
    )


def answers_of(pid: int) -> dict[tuple[str, int], int]:
    """Status that each HTTP server of a process tree gives a stranger for a request to generate: (path, port) -> it."""
    found = {}
    for port in {port for _, _, port in listeners(pid)}:
        for path in ("/generate", "/workers", "/update_weights_from_disk"):
            try:
                body: dict[str, Any] = {"input_ids": [1], "url": "http://127.0.0.1:9"}
                answer = requests.post(f"http://127.0.0.1:{port}{path}", json=body, timeout=20)
                found[path, port] = answer.status_code
            except requests.RequestException:  # no HTTP
                continue
    return found


def test_a_run_rolls_out_on_sglang_while_strangers_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = spec_of(tiny_directory(tmp_path), "hardware.accelerators_per_node=1")
    places = RunPaths(run="runs/r", attempt=1, tasks=task_set_place(spec))
    run(prepare_stage(spec, places, trains=True).job, tmp_path)
    export = tmp_path / "runs/r/exports" / str(STEPS - 1)
    export.mkdir(parents=True)
    for file in (tmp_path / "models/tiny").iterdir():
        (export / file.name).write_bytes(file.read_bytes())
    job = on_cpu(train_job(spec, places), tmp_path)
    log = tmp_path / "log.txt"
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "modules"), prepend=":")
    process = start(job, tmp_path, log)
    seen: dict[tuple[str, int], int] = {}
    heard = set()
    try:
        while process.poll() is None:
            heard |= listeners(process.pid)
            seen |= answers_of(process.pid)
            time.sleep(2)
    finally:
        for child in (
            psutil.Process(process.pid).children(recursive=True) if process.poll() is None else ()
        ):
            child.kill()
        process.kill()
        process.wait()
    assert process.returncode == 0, log.read_text()[-6000:]
    lines = [
        json.loads(line) for line in (tmp_path / "runs/r/metrics.jsonl").read_text().splitlines()
    ]
    ends = [(line["stage"], line["step"]) for line in lines]
    assert ends == [("evaluate", 0), ("train", 1), ("train", 2), ("evaluate", 2)]
    lines = lines[1:3]
    assert all(
        line["episodes/num"] == PROMPTS * GROUP and line["episodes/void"] == 0.0 for line in lines
    )
    everywhere = off_loopback(heard)
    assert not {name for name, _, _ in everywhere} & {"gcs_server", "raylet"}
    assert not {port for _, _, port in everywhere} & {port for _, port in seen}, (
        "torch's own stores alone"
    )
    refused = {
        port for (path, port), status in seen.items() if (path, status) == ("/generate", 401)
    }
    assert len(refused) >= 2, (seen, "the router and the engine")
    assert 200 not in {status for (_, port), status in seen.items() if port in refused}
