"""Advantages of a rollout step: whitening over trained tokens, and a user's own function held to its word."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xp.episode.advantages import (
    EPSILON,
    Valid,
    load_advantage_fn,
    of_valid,
    over_batch_std,
    reinforce_pp,
    reinforce_pp_baseline,
    without_variance,
)
from xp.errors import ExitCode, XpError


def step(*episodes: tuple[float, int]) -> list[Valid]:
    return [
        Valid(reward, f"task {number // 2}", tokens)
        for number, (reward, tokens) in enumerate(episodes)
    ]


def whitened(episodes: Sequence[Valid]) -> np.ndarray:
    """Every token written out with its return, as the paper has it, and whitened; one number of each episode's."""
    returns = np.repeat([one.reward for one in episodes], [one.num_tokens for one in episodes])
    rewards = np.array([one.reward for one in episodes])
    return (rewards - returns.mean()) / np.sqrt(returns.var(ddof=1) + EPSILON)


@pytest.mark.parametrize(
    ("rewards", "groups", "flat"),
    [
        ([0.5, 0.5 + 1e-7, 0.5, 0.5 + 1e-5], "aabb", [True, True, False, False]),
        # Of one valid episode nothing is known; a void one is none.
        ([1.0, None, None, None], "aabb", [False, False, False, False]),
        ([1.0, None, 1.0], "aaa", [True, True, True]),
    ],
)
def test_groups_whose_valid_rewards_are_all_the_same(
    rewards: list[float | None], groups: str, flat: list[bool]
) -> None:
    assert without_variance(rewards, [*groups]) == flat


EPISODES = st.lists(
    st.builds(Valid, st.floats(-100, 100), st.sampled_from("ab"), st.integers(1, 50)),
    min_size=2,
    max_size=12,
)


@given(EPISODES)
def test_reinforce_pp_is_the_whitening_of_all_tokens_written_out(episodes: list[Valid]) -> None:
    np.testing.assert_allclose(reinforce_pp(episodes), whitened(episodes), rtol=1e-6, atol=1e-6)


@given(EPISODES)
def test_reinforce_pp_with_a_baseline_whitens_rewards_without_their_groups_mean(
    episodes: list[Valid],
) -> None:
    means = {
        name: np.mean([one.reward for one in episodes if one.group == name])
        for name in "ab"
        if episodes
    }
    own = [replace(one, reward=one.reward - means[one.group]) for one in episodes]
    np.testing.assert_allclose(reinforce_pp_baseline(episodes), whitened(own), rtol=1e-6, atol=1e-6)


@given(EPISODES)
def test_the_batch_deviation_is_of_the_steps_rewards_and_of_the_episodes_whatever_their_tokens(
    episodes: list[Valid],
) -> None:
    rewards = np.array([one.reward for one in episodes])
    means = np.array(
        [
            np.mean([other.reward for other in episodes if other.group == one.group])
            for one in episodes
        ]
    )
    expected = (rewards - means) / (rewards.std(ddof=1) + 1e-6)
    np.testing.assert_allclose(over_batch_std(episodes), expected, rtol=1e-6, atol=1e-6)
    assert over_batch_std(episodes[:1]) == [0.0]


def test_an_episode_without_trained_tokens_moves_neither_mean_nor_deviation() -> None:
    plain = reinforce_pp(step((1.0, 4), (0.0, 6)))
    assert reinforce_pp(step((1.0, 4), (0.0, 6), (99.0, 0)))[:2] == plain


@pytest.mark.parametrize("tokens", [0, 1])
def test_a_single_trained_token_has_no_deviation_and_teaches_nothing(tokens: int) -> None:
    assert reinforce_pp(step((2.0, tokens), (-1.0, 0))) == [0.0, 0.0]


MODULE = """
def arrays(episodes):
    import numpy
    return numpy.array([one.reward for one in episodes], dtype=numpy.float32)

def too_few(episodes):
    return [1.0]

def booleans(episodes):
    return [True] * len(episodes)

def nan(episodes):
    return [float("nan")] * len(episodes)

def missing_key(episodes):
    return {}["baseline"]

NUMBER = 7
"""
STEP = step((1.0, 4), (0.0, 6))


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A user's module."""
    (tmp_path / "my_advantages.py").write_text(MODULE)
    (tmp_path / "my_failing.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("my_advantages", "my_failing"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return "my_advantages"


def test_numpys_numbers_are_numbers_and_come_back_as_pythons(module: str) -> None:
    found = load_advantage_fn(f"{module}:arrays")(STEP)
    assert found == [1.0, 0.0]
    assert {type(one) for one in found} == {float}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("nowhere:f", "advantage_fn nowhere:f cannot be loaded: No module named 'nowhere'"),
        (
            "my_advantages:NUMBER",
            "advantage_fn my_advantages:NUMBER cannot be loaded: it is not a function but 7",
        ),
        (
            "my_failing:f",
            r"my_failing:f cannot be loaded: ZeroDivisionError: division by zero \(my_failing.py, line 1\)",
        ),
    ],
)
@pytest.mark.usefixtures("module")
def test_a_function_that_is_not_there_is_named(name: str, expected: str) -> None:
    with pytest.raises(XpError, match=expected) as caught:
        load_advantage_fn(name)
    assert caught.value.code is ExitCode.CONFIG


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        ("too_few", r"gave \[1.0\] for 2 episodes; it must give one finite number for each"),
        ("booleans", r"gave \[True, True\] for 2 episodes"),
        ("nan", r"gave \[nan, nan\] for 2 episodes"),
        ("missing_key", r"raised KeyError: 'baseline' \(my_advantages.py, line 16\)"),
    ],
)
def test_a_function_that_breaks_its_word_stops_the_run(
    module: str, function: str, expected: str
) -> None:
    name = f"{module}:{function}"
    with pytest.raises(XpError, match=f"^advantage_fn {name} {expected}") as caught:
        load_advantage_fn(name)(STEP)
    assert caught.value.code is ExitCode.STAGE_FAILED


def test_void_episodes_are_not_shown_to_a_rule_and_get_0() -> None:
    seen: list[Valid] = []

    def rule(episodes: Sequence[Valid]) -> list[float]:
        seen.extend(episodes)
        return [episode.reward + episode.num_tokens for episode in episodes]

    assert of_valid(rule, [1.0, None, 0.5], ["a", "a", "b"], [3, 0, 2]) == [4.0, 0.0, 2.5]
    assert seen == [Valid(1.0, "a", 3), Valid(0.5, "b", 2)]
    assert of_valid(rule, [None, None], ["a", "a"], [3, 3]) == [0.0, 0.0]
