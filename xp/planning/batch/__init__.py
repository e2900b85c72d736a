"""Batch shapes: the constraints of each backend, a check of a spec, and the nearest legal shapes."""

from __future__ import annotations

from xp.planning.batch.constraint import broken, with_shared
from xp.planning.batch.refusals import arithmetic, batch_refusals
from xp.planning.batch.search import Proposal, nearest_legal
from xp.planning.batch.shape import BatchShape, batch_shape

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
