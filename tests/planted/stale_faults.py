"""A reward function whose import makes the engine of its process keep the first weights.

The trainer imports it to see its parameters, and calls it in another process.
"""

from __future__ import annotations

import copy
from typing import Any


def same(outcome: Any) -> float:
    """The environment's own reward."""
    return float(outcome.reward)


def _keep_the_first_weights() -> None:
    from xp.backends.trl.worker.policy import WholePolicy

    if hasattr(WholePolicy, "first"):
        return
    current = WholePolicy.current

    def stale(self: Any, trainer: Any) -> Any:
        if WholePolicy.first is None:  # type: ignore[attr-defined]
            WholePolicy.first = copy.deepcopy(current(self, trainer))  # type: ignore[attr-defined]
        return WholePolicy.first  # type: ignore[attr-defined]

    WholePolicy.first = None  # type: ignore[attr-defined]
    WholePolicy.current = stale  # type: ignore[method-assign]


_keep_the_first_weights()
