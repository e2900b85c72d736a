"""Stages of a small SkyRL run on any environment."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.support.jobs import leave_files
from tests.trainers.skyrl_parts import REHEARSAL
from xp.composition import compose
from xp.planning.plan import build_plan

REPOSITORY = Path(__file__).parents[2]
XPS_PYTHON = Path(os.environ.get("XP_PYTHON", REPOSITORY / ".venv/bin/python"))
"""What xp is started with: it prepares the tasks, and has openenv, which SkyRL's Python has not."""
STEPS = 2
GROUP = 2
HELD_OUT = 4
SMALL = (
    *REHEARSAL,
    f"evaluation.num_tasks={HELD_OUT}",
    f"training.num_steps={STEPS}",
    "training.prompts_per_step=2",
    f"training.group_size={GROUP}",
    "training.micro_batch_size=2",
    "training.warmup_updates=0",
    # Every answer is right, so every advantage is 0: the entropy bonus alone moves the weights.
    "training.entropy_coef=0.01",
    "training.learning_rate=1e-5",
)


def run_stage(
    outputs: Path, name: str, overrides: Sequence[str], path: str = ""
) -> subprocess.CompletedProcess[str]:
    """A stage with its files in place, in the interpreter and the environment that the local launcher gives it."""
    stage = next(
        one for one in build_plan(compose([*SMALL, *overrides]), "r", 1).stages if one.name == name
    )
    leave_files(outputs, stage.job)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environ = {
        **inherited,
        **stage.job.env,
        "PYTHONPATH": f"{REPOSITORY}:{path}",
        "XP_PYTHON": str(XPS_PYTHON),
    }
    python = str(XPS_PYTHON) if name == "prepare" else sys.executable
    return subprocess.run(
        [python, *stage.job.argv[1:]],
        cwd=outputs,
        env=environ,
        capture_output=True,
        text=True,
        timeout=900,
    )
