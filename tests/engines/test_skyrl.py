"""backend=skyrl with its real servers of vLLM, router, client and transfer on this machine's CPU (make test-vllm)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.engines import needs_vllm
from tests.support.child import ended

pytest.importorskip("skyrl", reason="SkyRL with its real engine: make test-vllm")

from tests.engines.skyrl_faults import UNTIED
from tests.support.tiny import leave_untrained
from xp.composition import compose
from xp.episode.metrics_file import read_metrics
from xp.errors import ExitCode
from xp.planning.plan import build_plan

pytestmark = [needs_vllm, pytest.mark.slow, pytest.mark.timeout(1500)]
BAR = 1e-4
"""Largest gap between engine and trainer of one set of weights in float32."""
REPOSITORY = Path(__file__).parents[2]
SMALL = (
    *(
        "backend=skyrl",
        "hardware=cpu",
        "backend.engine.name=vllm",
        "backend.engine.memory_fraction=0.1",
    ),
    *(
        "env.train.num_tasks=5",
        "env.held_out.num_tasks=4",
        "training.prompts_per_step=2",
        "training.group_size=2",
    ),
    *("training.micro_batch_size=2", "training.warmup_updates=0", "training.learning_rate=0.01"),
    # An untrained model earns nothing: the entropy bonus alone moves its weights.
    "training.entropy_coef=0.5",
)


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return leave_untrained(tmp_path_factory.mktemp("outputs"), *SMALL)


def run(
    outputs: Path,
    name: str,
    *overrides: str,
    faults: Any = None,
    instead: tuple[str, str] = ("", ""),
    program: str = "tests.engines.skyrl_faults",
    timeout_s: float = 1200,
) -> subprocess.CompletedProcess[str]:
    """The train stage of a run of this name, with faults.

    Args:
        faults: of the program.
        instead: a text of the stage's config, and the one that takes its place.
        program: module that runs the stage with the faults.
        timeout_s: of the stage.
    """
    plan = build_plan(compose([*SMALL, *overrides]), name, 1)
    job = next(one for one in plan.stages if one.name == "train").job
    for path, text in job.files.items():
        (outputs / path).parent.mkdir(parents=True, exist_ok=True)
        (outputs / path).write_text(text.replace(*instead) if instead[0] else text)
    assert any(instead[0] in text for text in job.files.values())
    *_, module, config = job.argv
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    argv = [sys.executable, "-m", program, module, config, json.dumps(faults)]
    environ = {**inherited, **job.env, "XP_ONE_MACHINE": "1", "PYTHONPATH": str(REPOSITORY)}
    return ended(argv, cwd=outputs, env=environ, timeout=timeout_s)


def gaps(outputs: Path, name: str) -> list[float]:
    lines = read_metrics(outputs / f"runs/{name}/metrics.jsonl", "train")
    assert all(line["training/grad_norm"] > 0 for line in lines)
    return [line["training/logprob_gap"] for line in lines]


def test_servers_agree_after_every_update_and_each_broken_transfer_shows(outputs: Path) -> None:
    done = run(
        outputs,
        "faults",
        "training.num_steps=7",
        "training.max_logprob_gap=null",
        faults={"4": "stale", "6": "layer"},
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    found = gaps(outputs, "faults")
    print([f"{gap:.1e}" for gap in found])
    assert max(found[step - 1] for step in (1, 2, 3, 5, 7)) < BAR
    assert min(found[step - 1] for step in (4, 6)) > BAR


def test_servers_beside_training_agree_too(outputs: Path) -> None:
    apart = (
        *("backend.engine.placement=separate", "backend.engine.accelerators=1"),
        "backend.parallel.offload_optimizer=false",
    )
    done = run(outputs, "apart", "training.num_steps=3", "training.max_logprob_gap=1e-4", *apart)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    found = gaps(outputs, "apart")
    print([f"{gap:.1e}" for gap in found])
    assert len(found) == 3
    assert max(found) < BAR


EXTENSION = "xp.backends.skyrl.worker.rehearsal.extension.SkyRLExtension"


@pytest.mark.parametrize(
    ("faults", "instead", "step"),
    [
        (
            None,
            ("inference_engine.model_dtype=float32", "inference_engine.model_dtype=bfloat16"),
            1,
        ),
        (UNTIED, ("", ""), 2),
        (None, (EXTENSION, "tests.engines.packed_head.SkyRLExtension"), 2),
    ],
    ids=["dtype", "untied", "head"],
)
def test_the_run_stops_where_the_engine_has_another_type_or_another_head(
    outputs: Path, faults: Any, instead: tuple[str, str], step: int, request: pytest.FixtureRequest
) -> None:
    name = request.node.callspec.id
    limits = ("training.num_steps=3", "training.max_logprob_gap=1e-4")
    done = run(outputs, name, *limits, faults=faults, instead=instead)
    assert done.returncode == ExitCode.DIVERGED, done.stdout[-5000:] + done.stderr[-5000:]
    said = done.stdout + done.stderr
    assert f"rollout step {step}: the engine's log-probabilities" in said
    print(next(line for line in said.splitlines() if "the engine's log-probabilities" in line))
    lines = read_metrics(outputs / f"runs/{name}/metrics.jsonl", "train")
    updated = [line["training/logprob_gap"] for line in lines if "training/grad_norm" in line]
    assert len(updated) == step - 1
    assert all(gap < BAR for gap in updated)
