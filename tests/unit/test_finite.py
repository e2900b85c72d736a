"""Which updates end a run, and which are left out of it."""

from __future__ import annotations

import math

import pytest

from xp.episode.finite import FiniteUpdates, finite_means
from xp.errors import ExitCode, XpError
from xp.spec.training import OnNonfinite


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_stop_ends_the_run_at_the_first(value: float) -> None:
    updates = FiniteUpdates(OnNonfinite.STOP)
    assert updates.are_finite(1, {"loss": 0.5, "gradient norm": None})
    with pytest.raises(XpError, match=f"rollout step 2: gradient norm {value}") as caught:
        updates.are_finite(2, {"loss": 0.5, "gradient norm": value})
    assert caught.value.code is ExitCode.DIVERGED


def test_skip_goes_on_while_they_are_rare() -> None:
    updates = FiniteUpdates(OnNonfinite.SKIP)
    for step in range(1, 30):
        assert updates.are_finite(step, {"loss": math.nan if step % 3 else 0.5}) is (step % 3 == 0)


def test_skip_ends_the_run_where_nothing_is_trained_any_more() -> None:
    updates = FiniteUpdates(OnNonfinite.SKIP)
    for step in (1, 1, 1, 2, 2):  # several updates of one step are one step
        assert not updates.are_finite(step, {"loss": math.nan})
    with pytest.raises(XpError, match="3 rollout steps in a row"):
        updates.are_finite(3, {"loss": math.nan})


def test_means_are_over_what_is_finite() -> None:
    updates = [{"a": 1.0, "b": math.nan}, {"a": 3.0, "b": math.inf, "c": 2.0}]
    assert finite_means(updates) == {"a": 2.0, "c": 2.0}
