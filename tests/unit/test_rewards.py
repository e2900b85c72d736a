"""From step rewards to one number."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.sections import reward_rule
from xp.episode.rewards import reduce_rewards
from xp.spec.env import Reduction

STEPS = [1.0, -2.0, 0.5]


@pytest.mark.parametrize(
    ("reduction", "reward"),
    [
        (Reduction.SUM, -0.5),
        (Reduction.MEAN, -0.5 / 3),
        (Reduction.MAX, 1.0),
        (Reduction.MIN, -2.0),
        (Reduction.LAST, 0.5),
    ],
)
def test_each_reduction_is_what_its_name_says(reduction: Reduction, reward: float) -> None:
    assert reduce_rewards(STEPS, True, reward_rule(reduction)) == pytest.approx(reward)


@pytest.mark.parametrize("reduction", list(Reduction))
def test_nothing_scored_is_zero_or_the_nonterminal_reward(reduction: Reduction) -> None:
    assert reduce_rewards([], False, reward_rule(reduction)) == 0.0
    assert reduce_rewards([], False, reward_rule(reduction, nonterminal=-0.25)) == -0.25


def test_the_nonterminal_reward_is_one_more_step() -> None:
    assert reduce_rewards([1.0], False, reward_rule(Reduction.MEAN, nonterminal=0.0)) == 0.5
    assert reduce_rewards([1.0], True, reward_rule(Reduction.MEAN, nonterminal=0.0)) == 1.0


def test_clamps_hold_at_both_ends() -> None:
    rule = reward_rule(Reduction.SUM, minimum=-1.0, maximum=1.0)
    assert [
        reduce_rewards(
            [step],
            True,
            rule,
        )
        for step in (-7.0, 0.5, 7.0)
    ] == [-1.0, 0.5, 1.0]


@given(
    st.lists(st.floats(-1e6, 1e6), max_size=30),
    st.booleans(),
    st.sampled_from(list(Reduction)),
)
def test_a_reward_is_always_finite_and_within_its_clamps(
    steps: list[float], done: bool, reduction: Reduction
) -> None:
    reward = reduce_rewards(
        steps, done, reward_rule(reduction, nonterminal=0.5, minimum=-3.0, maximum=4.0)
    )
    assert math.isfinite(reward)
    assert -3.0 <= reward <= 4.0
