"""Overrides of TRL runs on GPUs."""

from __future__ import annotations

GPUS = ("hardware=a100x4", "model=qwen3-4b")
SEPARATE = (*GPUS, "backend.engine.placement=separate", "backend.engine.accelerators=2")
