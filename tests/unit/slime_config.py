"""What Slime's processes read of a stage, for tests that need nothing of Slime."""

from __future__ import annotations

from pathlib import Path

from xp.backends.slime.worker.config import EngineLimits, SlimeStageConfig, WorkerConfig
from xp.envs.config import Chat


def worker_config(root: Path, updates_per_step: int) -> WorkerConfig:
    common = SlimeStageConfig(
        1,
        "runs/r",
        "runs/r/attempt_1/train",
        "tasks/t",
        "metrics.jsonl",
        Chat(),
        EngineLimits(1, 1, 1),
        1,
        0.2,
        1.0,
        "stop",
        0.1,
        None,
    )
    return WorkerConfig(
        root=str(root),
        common=common,
        phase="train",
        group_size=4,
        num_steps=10,
        prompts_per_step=2,
        updates_per_step=updates_per_step,
        mask_truncated=False,
        checkpoints=None,
        critic_checkpoints=None,
        exports=None,
        keep_checkpoints=1,
        best=None,
        symptoms=None,
        estimator="grpo",
        advantage_fn=None,
    )
