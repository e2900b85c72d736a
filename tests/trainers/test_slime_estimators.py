"""Each estimator through Slime's real rollout and its own conversion to training data, with a void episode in it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.contracts.test_agreement import NO_RETRY, ROW, FakeMix
from tests.fake_session import call
from tests.tiny import tokenizer_and_model
from tests.trainers.slime_play import Kept, args, arguments, converted, play_group
from tests.trainers.slime_setup import engine, group_of, needs_slime, put_worker, worker_config

__all__ = ["args", "arguments"]
pytestmark = needs_slime

OWN = "def own(episodes): return [episode.reward + 100 * episode.num_tokens for episode in episodes]"
PLAYED = ("win", "down", "lose", "win")
"""`down` is an outage."""


def played(args: Any, **settings: Any) -> tuple[list[Any], dict[str, Any]]:
    """Two groups of four, and what Slime makes of them."""
    started: list[int] = []
    tokenizer, _ = tokenizer_and_model()

    def says(_: list[int]) -> list[int]:
        started.append(len(started))
        text = call(PLAYED[started[-1] % 4])
        return [*tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]

    args.grpo_std_normalization = False
    put_worker(args, worker_config(args.xp_root, **settings), FakeMix(NO_RETRY), Kept())
    with engine(args, says):
        samples = [sample for number in range(2) for sample in play_group(args, group_of(ROW, 4, number))]
    return samples, converted(args, samples)


def split(samples: list[Any], data: dict[str, Any]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rewards, advantages and trained tokens of the valid episodes; the others have none of them."""
    is_valid = np.array([not math.isnan(sample.reward) for sample in samples])
    found, tokens = np.array(data["rewards"]), np.array([sum(mask) for mask in data["loss_masks"]])
    assert is_valid.sum() == 6
    assert not found[~is_valid].any()
    assert not tokens[~is_valid].any()
    return np.array([sample.reward for sample in samples])[is_valid], found[is_valid], tokens[is_valid]


def test_reinforce_pp_is_whitened_over_the_tokens_that_slime_will_train_on(args: Any) -> None:
    rewards, found, tokens = split(*played(args, estimator="reinforce_pp"))
    each = np.repeat(rewards, tokens)
    assert found == pytest.approx((rewards - each.mean()) / np.sqrt(each.var(ddof=1) + 1e-8))
    assert (found * tokens).sum() == pytest.approx(0.0, abs=1e-6)


def test_a_users_own_function_gives_slime_its_advantages(
    args: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "xp_test_own.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    rewards, found, tokens = split(*played(args, estimator="custom", advantage_fn="xp_test_own:own"))
    assert found == pytest.approx(rewards + 100 * tokens)


def test_a_critic_is_handed_rewards_and_each_ends_at_a_trained_token(args: Any) -> None:
    samples, data = played(args, estimator="gae")
    rewards, found, _ = split(samples, data)
    assert found == pytest.approx(rewards)
    assert all(mask[-1] for mask in data["loss_masks"] if any(mask))
