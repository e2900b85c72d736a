"""Batch shapes: the constraints of each backend, a check of a spec, and the nearest legal shapes."""

from __future__ import annotations

from xp.backends.batch.laws import broken, with_shared_laws
from xp.backends.batch.refusals import arithmetic, batch_refusals
from xp.backends.batch.search import Proposal, nearest_legal
from xp.backends.batch.setting import Setting, setting_of

__all__ = [
    "Proposal",
    "Setting",
    "arithmetic",
    "batch_refusals",
    "broken",
    "nearest_legal",
    "setting_of",
    "with_shared_laws",
]
