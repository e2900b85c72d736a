"""Engines of Slime's own that die or hang in a run: it goes on, with engines that have the weights of the moment.

Slime's whole train.py with Ray, its router, its monitor, its restart of engines, its update of weights over the disk,
and SGLang's real servers, which its own engines start. Only Megatron is left out (tests/engines/slime_lost.py).
`make test-sglang`.
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

from tests.engines.test_slime import BAR, ON_CPU, gap, needs_server, other_weights
from tests.trainers.slime_setup import needs_slime, tiny_directory
from tests.trainers.test_slime_rehearsal import GROUP, PROMPTS, job_of, run, spec_of
from xp.backends.base import RunPaths
from xp.backends.slime.worker.config import SlimeTrainConfig
from xp.backends.stages.prepare import prepare_stage, task_set_place
from xp.launchers.files import write_files
from xp.security.loopback import free_port

pytestmark = [needs_slime, needs_server, pytest.mark.slow, pytest.mark.timeout(3600)]

ASKED = (
    *("--rollout-health-check-interval", "3", "--rollout-health-check-timeout", "90"),
    *("--update-weight-transport", "disk", "--distributed-backend", "gloo"),
)
"""How often engines are asked, and a way of weights that needs no GPU."""


@dataclass(frozen=True)
class Ended:
    """A run of the train stage that has ended."""

    code: int
    log: str
    lines: list[dict[str, Any]]
    """Lines of metrics.jsonl, in order."""
    root: Path

    def samples(self, rollout_id: int) -> list[Any]:
        """Slime's dump of a rollout step."""
        import torch
        from slime.utils.types import Sample

        dump = torch.load(self.root / f"dump-{rollout_id}.pt", weights_only=False)
        return [Sample.from_dict(value) for value in dump["samples"]]


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
    dumps = ("--save-debug-rollout-data", str(root / "dump-{rollout_id}.pt"))
    flags = (*config.command.flags, *ON_CPU, *ASKED, *dumps, "--update-weight-disk-dir", str(root / "weights"))
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
    return Ended(code, log.read_text(), lines, root)


def checked(ended: Ended, rollout_id: int) -> float:
    """Gap between the engines' log-probabilities of a rollout and the weights that it was to have."""
    scored = [one for one in ended.samples(rollout_id) if one.reward == one.reward]
    found = gap(other_weights(rollout_id + 1), scored)
    assert found < BAR < gap(other_weights(rollout_id), scored)
    return found


def test_the_other_engine_takes_over_and_the_lost_one_comes_back_with_the_weights_of_the_moment(tmp_path: Path) -> None:
    """Killed in a rollout, killed between two, its scheduler stopped in a rollout while its HTTP process answers."""
    ended = trained(tmp_path, 5, 2, {"0": "kill", "1": "gone", "3": "hang"})
    assert ended.code == 0, ended.log[-6000:]
    assert [line["episodes/num"] for line in ended.lines] == [PROMPTS * GROUP] * 5
    restarts = [line.get("training/engine_restarts", 0.0) for line in ended.lines]
    gaps = [checked(ended, rollout_id) for rollout_id in range(5)]
    void = [line["episodes/void"] for line in ended.lines]
    print(restarts, [f"{one:.1e}" for one in gaps], void)
    assert restarts == [0, 1, 1, 0, 1]
    assert void == [0.0] * 5
    assert ended.log.count("did not answer and was ended") == 3


def test_with_one_engine_what_it_was_playing_is_void_and_the_next_step_has_an_engine(tmp_path: Path) -> None:
    ended = trained(tmp_path, 3, 1, {"1": "kill"}, "training.max_void_fraction=1.0")
    assert ended.code == 0, ended.log[-6000:]
    restarts = [line.get("training/engine_restarts", 0.0) for line in ended.lines]
    void = [line["episodes/void"] * line["episodes/num"] for line in ended.lines]
    print(restarts, void, [f"{checked(ended, rollout_id):.1e}" for rollout_id in (0, 2)])
    assert restarts == [0, 0, 1]
    assert void[0] == void[2] == 0
    assert void[1] > 0
    records = [json.loads(line) for line in next(tmp_path.rglob("trajectories/train.jsonl")).read_text().splitlines()]
    reasons = [one["outcome"]["void_reason"] for one in records if one["outcome"]["status"] == "void"]
    assert len(reasons) == void[1]
    assert all(reason.startswith("EngineLost: no engine answered") for reason in reasons)
