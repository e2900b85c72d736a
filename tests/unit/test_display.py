"""Lines at the end of a run."""

from __future__ import annotations

import pytest
from scipy import stats

from xp.cli.display import _reward
from xp.run_records.held_out import HeldOutResult


def test_a_held_out_reward_stands_with_the_interval_over_its_tasks() -> None:
    line = _reward(HeldOutResult(0.5, 0.1, 0.5, 20, 0, num_tasks=10))
    reach = stats.t.ppf(0.975, 9) * 0.1
    assert f"(95 %: {0.5 - reach:.3f} to {0.5 + reach:.3f}) over 20 episodes" in line


@pytest.mark.parametrize(("stderr", "num_tasks", "told"), [(0.0, 10, ""), (None, 1, ""), (0.1, None, " ± 0.100")])
def test_where_nothing_is_known_of_other_tasks_no_interval_is_told(
    stderr: float | None, num_tasks: int | None, told: str
) -> None:
    assert f"0.500{told} over" in _reward(HeldOutResult(0.5, stderr, 0.5, 20, 0, num_tasks=num_tasks))
