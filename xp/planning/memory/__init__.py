"""Will it fit: plain arithmetic of an accelerator's memory, from the model's architecture alone; uncalibrated."""

from __future__ import annotations

from xp.planning.memory.fit import Lever, MemoryFit, fit
from xp.planning.memory.report import memory_lines
from xp.planning.memory.weights import Weights, weights_of

__all__ = ["Lever", "MemoryFit", "Weights", "fit", "memory_lines", "weights_of"]
