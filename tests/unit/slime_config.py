"""What Slime's processes read of a stage, for tests that need nothing of Slime."""

from __future__ import annotations

from pathlib import Path

from xp.backends.slime.worker.config import SlimeStageConfig, WorkerConfig
from xp.envs.config import Chat
from xp.worker.token_budget import TokenBudget


def worker_config(root: Path, updates_per_step: int) -> WorkerConfig:
    common = SlimeStageConfig(
        attempt=1,
        run="runs/r",
        stage_dir="runs/r/attempt_1/train",
        tasks="tasks/t",
        metrics="metrics.jsonl",
        chat=Chat(),
        max_void_fraction=0.2,
        pass_threshold=1.0,
        on_nonfinite="stop",
        max_logprob_gap=0.1,
        upload_as=None,
        limits=TokenBudget(1, 1, 1),
        evaluation_limits=TokenBudget(1, 1, 1),
        seed=1,
    )
    return WorkerConfig(
        root=str(root),
        common=common,
        phase="train",
        group_size=4,
        num_steps=10,
        prompts_per_step=2,
        updates_per_step=updates_per_step,
    )
