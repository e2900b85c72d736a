"""A small training of a checkpoint with a vision part, and the weights that it publishes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SMALL = (
    "env=sums",
    "model=hf",
    "model.dtype=float32",
    "env.train.num_tasks=4",
    "env.held_out.num_tasks=2",
    "training.prompts_per_step=2",
    "training.group_size=2",
    "training.micro_batch_size=2",
    "training.num_steps=2",
    "training.warmup_updates=0",
    "training.learning_rate=1e-2",
    "training.entropy_coef=0.01",
    "training.max_tokens_per_turn=8",
    "training.max_response_tokens=64",
)


def weights(directory: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    return dict(load_file(directory / "model.safetensors"))
