"""Advantages that xp makes of a rollout step under Slime: every estimator, with void and left-out episodes in it."""

from __future__ import annotations

import math
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.jobs import train_config
from tests.unit.slime_config import worker_config
from tests.unit.slime_specs import DENSE
from xp.backends.slime.worker.advantages import advantages, estimate_of
from xp.backends.slime.worker.config import SlimeTrainConfig, WorkerConfig
from xp.backends.slime.worker.train import main as train
from xp.composition import compose
from xp.errors import ExitCode, XpError
from xp.spec import Estimator
from xp.spec.algorithm import SCALES

NUMBERS = count()


def sample(reward: float, group: int, num_tokens: int = 3, *, is_left_out: bool = False) -> Any:
    """A sample of Slime's rollout, with two tokens of a tool's reply in the middle."""
    mask = [1, *[0, 0], *[1] * (num_tokens - 1)]
    return SimpleNamespace(
        index=next(NUMBERS),
        reward=reward,
        group_index=group,
        loss_mask=mask,
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


@pytest.mark.parametrize("by_std", [True, False])
def test_advantages_are_grpos_over_the_valid_episodes_of_each_group(by_std: bool) -> None:
    rewards = [
        1.0,
        math.nan,
        0.0,
        0.5,
        math.nan,
        math.nan,
        0.7,
        math.nan,
        0.3,
        0.3,
        0.3,
        0.3,
    ]
    samples = [sample(reward, at // 4) for at, reward in enumerate(rewards)]
    _, found = advantages(samples, estimate_of(settings_of("grpo"), by_std=by_std))
    scale = 0.5 + 1e-6 if by_std else 1.0
    assert found == pytest.approx([0.5 / scale, 0, -0.5 / scale, 0, *[0.0] * 8])


def test_rloo_leaves_each_valid_episode_out_of_its_own_baseline() -> None:
    rewards = [
        1.0,
        math.nan,
        0.0,
        0.5,
        math.nan,
        math.nan,
        0.7,
        math.nan,
    ]
    samples = [sample(reward, at // 4) for at, reward in enumerate(rewards)]
    _, found = advantages(samples, estimate_of(settings_of("rloo"), by_std=False))
    assert found == pytest.approx([1.0 - 0.25, 0, 0.0 - 0.75, 0.5 - 0.5, 0, 0, 0, 0])


def test_maxrl_divides_the_centred_reward_by_the_groups_mean() -> None:
    estimate = estimate_of(settings_of("maxrl"), by_std=False)
    _, computed = advantages(
        [sample(1.0, 0), sample(0.0, 0), sample(0.0, 0), sample(0.0, 0)], estimate
    )
    assert computed == pytest.approx([3.0, -1.0, -1.0, -1.0], abs=1e-4)
    with pytest.raises(XpError, match="a reward is -1; use rewards of at least 0"):
        advantages([sample(1.0, 0), sample(-1.0, 0)], estimate)


def test_reinforce_pp_whitens_over_the_trained_tokens_of_the_whole_step() -> None:
    numpy = pytest.importorskip("numpy")
    cut = sample(5.0, 1, 9, is_left_out=True)
    samples = [
        sample(1.0, 0, 2),
        sample(math.nan, 0, 50),
        sample(0.0, 1, 6),
        cut,
    ]
    raw, found = advantages(samples, estimate_of(settings_of("reinforce_pp"), by_std=False))
    tokens = numpy.repeat([1.0, 0.0], [2, 6])
    scale = numpy.sqrt(tokens.var(ddof=1) + 1e-8)
    assert found[0] == pytest.approx((1.0 - tokens.mean()) / scale)
    assert found[2] == pytest.approx((0.0 - tokens.mean()) / scale)
    assert found[1] == 0.0
    assert (raw[0], math.isnan(raw[1])) == (1.0, True)


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


def test_a_missing_function_ends_the_stage_before_an_episode(tmp_path: Path) -> None:
    named = ["algorithm=custom", "algorithm.advantage_fn=xp_no_such_module:mine"]
    config = train_config(SlimeTrainConfig, compose([*DENSE, *named]))
    (tmp_path / "config.json").write_text(config.to_json())
    with pytest.raises(XpError, match="advantage_fn xp_no_such_module:mine cannot be loaded"):
        train([str(tmp_path / "config.json")])


def test_a_critic_gets_raw_rewards_and_a_step_without_tokens_stops() -> None:
    estimate = estimate_of(settings_of("gae"), by_std=False)
    assert advantages([sample(0.5, 0), sample(math.nan, 0), sample(2.0, 1)], estimate)[1] == [
        0.5,
        0.0,
        2.0,
    ]
    with pytest.raises(XpError, match=r"set algorithm\.mask_truncated=false") as caught:
        advantages([sample(0.5, 0, is_left_out=True), sample(math.nan, 0)], estimate)
    assert caught.value.code is ExitCode.UNHEALTHY


def test_slimes_own_formula_is_met_where_nothing_is_void() -> None:
    torch = pytest.importorskip("torch")
    rewards = torch.tensor([0.2, 0.9, 0.4, 0.1])
    centre = rewards - rewards.mean()
    estimate = estimate_of(settings_of("grpo"), by_std=True)
    _, found = advantages([sample(reward, 0) for reward in rewards.tolist()], estimate)
    assert found == pytest.approx((centre / (centre.std() + 1e-6)).tolist(), abs=1e-5)
