"""Overrides of TRL runs on GPUs."""

from __future__ import annotations

GPUS = ("hardware=a100x4", "model=qwen3-4b")
LORA = "model.lora={rank: 8, alpha: 16.0, dropout: 0.0, target_modules: null}"
SEPARATE = (*GPUS, "backend.engine.placement=separate", "backend.engine.accelerators=2")
