"""Engines of Slime's own that die or hang in a run: the stage ends with exit code 13.

Slime's whole train.py with Ray, its router, its update of weights over the disk, and SGLang's real servers, which its
own engines start. Only Megatron is left out (tests/engines/slime_lost.py). `make test-sglang`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.engines.test_slime import ON_CPU, needs_server
from tests.trainers.slime_setup import needs_slime, tiny_directory
from tests.trainers.test_slime_rehearsal import job_of, run, spec_of
from xp.backends.slime.worker.config import SlimeTrainConfig
from xp.errors import ExitCode
from xp.launchers.files import write_files
from xp.lib.loopback import free_port
from xp.planning.backend import RunPaths
from xp.planning.stages import prepare_stage, task_set_place

pytestmark = [needs_slime, needs_server, pytest.mark.slow, pytest.mark.timeout(3600)]

ASKED = ("--update-weight-transport", "disk", "--distributed-backend", "gloo")
"""A way of weights that needs no GPU."""


@dataclass(frozen=True)
class Ended:
    """A run of the train stage that has ended."""

    code: int
    log: str
    lines: list[dict[str, Any]]
    """Lines of metrics.jsonl, in order."""


def trained(root: Path, steps: int, engines: int, faults: Mapping[str, str], *overrides: str) -> Ended:
    """Run the train stage to its end, on one accelerator for training and one for each engine."""
    layout = (f"hardware.accelerators_per_node={engines + 1}", f"backend.engine.accelerators={engines}")
    more = ("backend.engine.placement=separate", "backend.engine.tensor_parallel=1", f"training.num_steps={steps}")
    spec = spec_of(tiny_directory(root), *layout, *more, *overrides)
    places = RunPaths(run="runs/r", attempt=1, tasks=task_set_place(spec))
    run(prepare_stage(spec, places, trains=True).job, root)
    export = root / "runs/r/exports" / str(steps - 1)
    export.mkdir(parents=True)
    for file in (root / "models/tiny").iterdir():
        (export / file.name).write_bytes(file.read_bytes())
    job = job_of(spec, places, "train")
    name = next(path for path in job.files if path.endswith("/config.json"))
    config = SlimeTrainConfig.from_json(job.files[name])
    flags = (*config.command.flags, *ON_CPU, *ASKED, "--update-weight-disk-dir", str(root / "weights"))
    config = replace(config, command=replace(config.command, flags=flags))
    write_files({**job.files, name: config.to_json()}, root)
    # Reads and writes sound: SGLang imports it with its server, and a text model needs none.
    (root / "modules").mkdir()
    (root / "modules/soundfile.py").touch()
    paths = [str(root / "modules"), str(Path.cwd()), *os.environ["PYTHONPATH"].split(os.pathsep)]
    environ = {
        **os.environ,
        **job.env,
        "PYTHONPATH": os.pathsep.join(str(Path(path).absolute()) for path in paths if path),
        "RAY_OVERRIDE_RESOURCES": json.dumps({"CPU": 8, "GPU": engines + 1}),
        "SGLANG_USE_CPU_ENGINE": "1",
        "SGLANG_GRPC_PORT": str(free_port()),
        # Many processes on two cores: an engine that is asked answers late.
        "SGLANG_HEALTH_CHECK_TIMEOUT": "60",
    }
    argv = [sys.executable, "-m", "tests.engines.slime_lost", name, json.dumps(faults)]
    log = root / "log.txt"
    with log.open("wb") as file:
        process = subprocess.Popen(argv, cwd=root, env=environ, stdout=file, stderr=subprocess.STDOUT)
    try:
        code = process.wait(3500)
    finally:
        for child in psutil.Process(process.pid).children(recursive=True) if process.poll() is None else ():
            child.kill()
        process.kill()
    metrics = root / "runs/r/metrics.jsonl"
    lines = [json.loads(line) for line in metrics.read_text().splitlines()] if metrics.is_file() else []
    return Ended(code, log.read_text(), lines)


@pytest.mark.parametrize(
    ("faults", "said"),
    [
        ({"1": "kill"}, "no engine answered: "),
        ({"1": "gone"}, "an engine did not answer: "),
        ({"1": "hang"}, "no engine answered: a turn took longer than 120 s"),
    ],
    ids=["killed in a rollout", "killed between two", "hangs while its HTTP process answers"],
)
def test_a_lost_engine_ends_the_stage_with_its_code(faults: Mapping[str, str], said: str, tmp_path: Path) -> None:
    ended = trained(tmp_path, 4, 1, faults)
    assert ended.code == ExitCode.ENGINE, ended.log[-6000:]
    assert f"xp: {said}" in ended.log
    assert len(ended.lines) >= 1
    assert len(list(tmp_path.rglob("trajectories/train.jsonl"))) == 1
