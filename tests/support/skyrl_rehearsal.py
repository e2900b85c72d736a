"""Stages of a small SkyRL run, started as the local launcher starts them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.jobs import leave_files
from tests.support.tiny import leave_untrained
from tests.trainers.skyrl_parts import REHEARSAL
from xp.composition import compose
from xp.episode.metrics_file import read_metrics
from xp.planning.job import Stage
from xp.planning.plan import build_plan

REPOSITORY = Path(__file__).parents[2]
SMALL = (
    *REHEARSAL,
    "env.train.num_tasks=5",
    "env.held_out.num_tasks=4",
    "training.prompts_per_step=2",
    "training.group_size=2",
    "training.micro_batch_size=2",
    "training.warmup_updates=0",
    "training.checkpoint_every=1",
    "training.keep_checkpoints=2",
    # An untrained model earns nothing: the entropy bonus alone moves its weights.
    "training.entropy_coef=0.01",
    # The stand-in of vLLM draws other tokens than the engine of the evaluate stage.
    "evaluation.temperature=0.0",
)


def stage_of(
    outputs: Path, name: str, attempt: int, *overrides: str, run: str = "r"
) -> tuple[Stage, dict[str, str]]:
    """A stage with its files in place, and its environment, as the local launcher gives it."""
    plan = build_plan(compose([*SMALL, *overrides]), run, attempt)
    stage = next(stage for stage in plan.stages if stage.name == name)
    return stage, left(outputs, stage)


def left(outputs: Path, stage: Stage) -> dict[str, str]:
    """Puts a stage's files in place; returns its environment."""
    leave_files(outputs, stage.job)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    # A user's own modules may lie in the outputs root.
    return {**inherited, **stage.job.env, "PYTHONPATH": f"{REPOSITORY}{os.pathsep}{outputs}"}


def run(
    outputs: Path, stage_name: str, attempt: int, *overrides: str, name: str = "r"
) -> subprocess.CompletedProcess[str]:
    return run_stage(outputs, stage_of(outputs, stage_name, attempt, *overrides, run=name)[0])


def run_stage(outputs: Path, stage: Stage) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, *stage.job.argv[1:]]
    environ = left(outputs, stage)
    return subprocess.run(
        argv, cwd=outputs, env=environ, capture_output=True, text=True, timeout=900
    )


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return leave_untrained(tmp_path_factory.mktemp("outputs"), *SMALL)


def lines(outputs: Path) -> list[dict[str, Any]]:
    return read_metrics(outputs / "runs/r/metrics.jsonl", "train")
