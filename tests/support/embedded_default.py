"""Commands in a directory of its own, and what a run leaves there."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

SMALL = (
    # An untrained model wins nothing, and equal rewards teach nothing: this one tells its episodes apart.
    "env.reward_fn=my_rewards:by_length",
    "env.train.num_tasks=16",
    "env.held_out.num_tasks=8",
    "training.prompts_per_step=2",
    "training.group_size=4",
    "training.micro_batch_size=8",
    "training.num_steps=2",
    "training.checkpoint_every=1",
    # Untrained, it writes until its tokens are used up.
    "training.max_response_tokens=60",
)


def xp(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "xp", *arguments],
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
        timeout=1500,
    )


def the_run(directory: Path, name: str = "first") -> Path:
    """The directory of the run of that name."""
    (run,) = (directory / "outputs" / "runs").glob(f"{name}-*")
    return run


def metrics(run: Path, stage: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["stage"] == stage]
