"""Advantages that xp makes of a rollout step under Slime: every estimator, with void and left-out episodes in it."""

from __future__ import annotations

import math
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.slime_config import worker_config
from xp.backends.slime.worker.advantages import advantages, estimate_of
from xp.backends.slime.worker.config import WorkerConfig
from xp.errors import ExitCode, XpError
from xp.spec import Estimator
from xp.spec.algorithm import SCALES

NUMBERS = count()


def sample(reward: float, group: int, num_tokens: int = 3, *, is_left_out: bool = False) -> Any:
    """A sample of Slime's rollout, with two tokens of a tool's reply in the middle."""
    return SimpleNamespace(
        index=next(NUMBERS),
        reward=reward,
        group_index=group,
        loss_mask=[1, 0, 0, *[1] * (num_tokens - 1)],
        remove_sample=is_left_out or math.isnan(reward),
    )


def settings_of(estimator: str, advantage_fn: str | None = None) -> WorkerConfig:
    name = Estimator(estimator)
    algorithm = {
        "estimator": name,
        "advantage_scale": SCALES.get(name, ("group_std",))[0],
        "advantage_fn": advantage_fn,
    }
    return worker_config(
        Path("/"), 1, **{f"algorithm__{key}": value for key, value in algorithm.items()}
    )


NAN = math.nan


@pytest.mark.parametrize(
    ("estimator", "by_std", "expected"),
    [
        ("grpo", True, [0.5 / (0.5 + 1e-6), 0, -0.5 / (0.5 + 1e-6), 0, 0, 0, 0, 0]),
        ("grpo", False, [0.5, 0, -0.5, 0, 0, 0, 0, 0]),
        ("rloo", False, [1.0 - 0.25, 0, 0.0 - 0.75, 0.5 - 0.5, 0, 0, 0, 0]),
        ("maxrl", False, [0.5 / 0.5, 0, -0.5 / 0.5, 0, 0, 0, 0, 0]),
    ],
)
def test_advantages_are_over_the_valid_episodes_of_each_group(
    estimator: str, by_std: bool, expected: list[float]
) -> None:
    rewards = [1.0, NAN, 0.0, 0.5, NAN, NAN, 0.7, NAN]
    samples = [sample(reward, at // 4) for at, reward in enumerate(rewards)]
    _, computed = advantages(samples, estimate_of(settings_of(estimator), by_std=by_std))
    assert computed == pytest.approx(expected, abs=1e-4)


OWN = """
def against_the_best(episodes):
    best = max(episode.reward for episode in episodes)
    return [(episode.reward - best) * episode.num_tokens + len(episode.group) for episode in episodes]
"""


def test_a_function_of_the_users_own_sees_the_valid_episodes_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "xp_test_advantages.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    samples = [
        sample(1.0, 0, 2),
        sample(math.nan, 0, 50),
        sample(0.25, 10, 4),
    ]
    own = estimate_of(settings_of("custom", "xp_test_advantages:against_the_best"), by_std=False)
    assert advantages(samples, own)[1] == [1.0, 0.0, -0.75 * 4 + 2]


def test_a_critic_gets_raw_rewards_and_a_step_without_tokens_stops() -> None:
    estimate = estimate_of(settings_of("gae"), by_std=False)
    assert advantages(
        [
            sample(0.5, 0),
            sample(math.nan, 0),
            sample(2.0, 1),
        ],
        estimate,
    )[1] == [
        0.5,
        0.0,
        2.0,
    ]
    with pytest.raises(XpError, match=r"set algorithm\.mask_truncated=false") as caught:
        advantages(
            [
                sample(
                    0.5,
                    0,
                    is_left_out=True,
                ),
                sample(math.nan, 0),
            ],
            estimate,
        )
    assert caught.value.code is ExitCode.UNHEALTHY
