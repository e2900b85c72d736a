"""Handles updates whose loss or gradient is not finite: stops the run, or skips them while they are rare."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Final

from xp.errors import ExitCode, XpError
from xp.lib.nested import grouped
from xp.spec.training import OnNonfinite

MOST_IN_A_ROW: Final = 3
"""Number of consecutive rollout steps with such an update after which the run stops in any case."""


class FiniteUpdates:
    """Checks the updates of a run.

    Args:
        rule: `training.on_nonfinite`.
    """

    def __init__(self, rule: OnNonfinite) -> None:
        self._rule = rule
        self._last_step: int | None = None
        self._in_a_row = 0

    def are_finite(self, step: int, values: Mapping[str, float | None]) -> bool:
        """Returns whether all numbers of an update are finite; None counts as finite.

        Args:
            step: rollout step, from 1.
            values: name for messages, such as `loss` -> value.

        Raises:
            XpError: (DIVERGED) a value is not finite, and the rule or the limit of consecutive steps ends the run.
        """
        nonfinite = [
            f"{name} {value}"
            for name, value in values.items()
            if value is not None and not math.isfinite(value)
        ]
        if not nonfinite:
            return True
        if step != self._last_step:
            self._in_a_row = self._in_a_row + 1 if self._last_step == step - 1 else 1
            self._last_step = step
        what = f"rollout step {step}: {', '.join(nonfinite)}"
        if self._rule is OnNonfinite.STOP:
            raise XpError(
                f"{what}: the update is not a finite number, and training stops before a checkpoint holds it\n"
                "look at the rewards of this step (trajectories), training.learning_rate and training.max_grad_norm;"
                " set training.on_nonfinite=skip, which leaves single updates out",
                ExitCode.DIVERGED,
            )
        if self._in_a_row >= MOST_IN_A_ROW:
            raise XpError(
                f"{what}: {MOST_IN_A_ROW} rollout steps in a row had an update that is not a finite number;"
                " no update changes the model any more",
                ExitCode.DIVERGED,
            )
        return False


def finite_means(updates: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Mean of each metric over the updates with a finite value of it."""
    values = grouped(
        (name, value)
        for update in updates
        for name, value in update.items()
        if math.isfinite(value)
    )
    return {name: fmean(values[name]) for name in sorted(values)}
