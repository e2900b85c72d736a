"""Estimates an accelerator's memory from the model's architecture, the episodes' lengths and measured slopes."""

from __future__ import annotations

from xp.planning.memory.fit import Lever, MemoryFit, MemoryVerdict, fit, memory_refusals
from xp.planning.memory.report import memory_json, memory_lines
from xp.planning.memory.weights import Weights, weights_of

__all__ = [
    "Lever",
    "MemoryFit",
    "MemoryVerdict",
    "Weights",
    "fit",
    "memory_json",
    "memory_lines",
    "memory_refusals",
    "weights_of",
]
