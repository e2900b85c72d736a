"""Lines of a plan, and at the end of a run."""

from __future__ import annotations

import pytest
from scipy import stats

from xp.builtin.model.tiny_model import SHIPPED
from xp.cli.display import _reward, notice_lines
from xp.composition import compose
from xp.planning.plan import build_plan
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


@pytest.mark.parametrize(
    ("overrides", "is_warned"),
    [
        (("env=multiply",), True),
        (("env=multiply", "sft.data=solve:my_env:solve"), False),
        (("env=multiply", f"training.initial_checkpoint={SHIPPED}"), False),
        (("env=multiply", "model=hf", f"model.path={SHIPPED}"), False),
        (("env=whodunit_mini",), False),
    ],
)
def test_a_plan_says_where_the_tiny_model_learns_nothing(overrides: tuple[str, ...], is_warned: bool) -> None:
    lines = notice_lines(build_plan(compose(overrides), "r"))
    warnings = [
        line for line in lines if "knows the game of whodunit_mini alone, so it learns nothing in multiply" in line
    ]
    assert len(warnings) == is_warned
