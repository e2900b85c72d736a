"""Batch shapes: the constraints of each backend, a check of a spec, and the nearest legal shapes."""

from __future__ import annotations

from xp.backends.batch.constraint import broken, with_shared
from xp.backends.batch.refusals import arithmetic, batch_refusals
from xp.backends.batch.search import Proposal, nearest_legal
from xp.backends.batch.shape import BatchShape, batch_shape

__all__ = [
    "BatchShape",
    "Proposal",
    "arithmetic",
    "batch_refusals",
    "batch_shape",
    "broken",
    "nearest_legal",
    "with_shared",
]
