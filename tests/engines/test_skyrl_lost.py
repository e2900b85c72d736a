"""Servers of SkyRL's that die or hang in a training on this machine's CPU, with the real vLLM (make test-vllm)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.engines import needs_vllm

pytest.importorskip("skyrl", reason="SkyRL with its real engine: make test-vllm")

from tests.engines.test_skyrl import BAR, SMALL, run
from tests.tiny import leave_untrained
from xp.episode.metrics_file import read_metrics
from xp.errors import ExitCode

pytestmark = [needs_vllm, pytest.mark.slow, pytest.mark.timeout(3700)]
OTHER: Any = {"program": "tests.engines.skyrl_lost", "timeout_s": 3600}
SMALL_STEPS = ("training.max_logprob_gap=1e-4", "env.limits.max_sessions=2")
"""Two episodes at the same time, of four in a step: those that wait when a server is lost are played by the next."""
APART = (
    "backend.engine.placement=separate",
    "backend.engine.accelerators=1",
    "backend.parallel.offload_optimizer=false",
)


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return leave_untrained(tmp_path_factory.mktemp("outputs"), *SMALL)


@pytest.mark.parametrize("placement", [(), APART], ids=["colocated", "apart"])
def test_a_server_that_dies_or_hangs_is_started_again_with_the_weights_of_the_moment(
    outputs: Path, placement: tuple[str, ...], request: pytest.FixtureRequest
) -> None:
    """Killed in a rollout, killed between two, and its engine stopped in a rollout while its HTTP process answers."""
    name = request.node.callspec.id
    faults = {"2": "kill", "3": "gone", "5": "hang"}
    done = run(outputs, name, "training.num_steps=6", *SMALL_STEPS, *placement, faults=faults, **OTHER)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    lines = read_metrics(outputs / f"runs/{name}/metrics.jsonl", "train")
    restarts = [line.get("training/engine_restarts", 0.0) for line in lines]
    void = [line["episodes/void"] * line["episodes/num"] for line in lines]
    gaps = [line["training/logprob_gap"] for line in lines]
    print(restarts, void, [f"{gap:.1e}" for gap in gaps])
    assert max(gaps) < BAR
    assert restarts == [0, 1, 0, 1, 1, 0]
    for step, number in enumerate(void, 1):
        assert (1 <= number <= 2) if step in (2, 5) else number == 0
    told = done.stdout + done.stderr
    assert told.count("xp: warning: the engine at") == 3
    records = [
        json.loads(line)
        for line in next((outputs / f"runs/{name}").rglob("trajectories/train.jsonl")).read_text().splitlines()
    ]
    reasons = [one["outcome"]["void_reason"] for one in records if one["outcome"]["status"] == "void"]
    assert len(reasons) == sum(void)
    assert all(reason.startswith("EngineLost: ") for reason in reasons)


def test_an_engine_that_dies_again_and_again_ends_the_run_with_its_own_exit_code(outputs: Path) -> None:
    faults = {"1": "core", "2": "kill", "3": "core", "4": "kill"}
    done = run(outputs, "again", "training.num_steps=5", *SMALL_STEPS, faults=faults, **OTHER)
    assert done.returncode == ExitCode.ENGINE, done.stdout[-5000:] + done.stderr[-5000:]
    assert "(after 3 restarts)" in done.stdout + done.stderr
    assert len(read_metrics(outputs / "runs/again/metrics.jsonl", "train")) == 3
