"""Advantages that xp computes instead of SkyRL: REINFORCE++, the user's own function, and GAE with a critic.

SkyRL's own functions (skyrl 0.4.0, utils/ppo_utils.py) get `response_mask`, in which tool results count as the policy's
tokens and void episodes as reward 0: both would be part of the whitening, and GAE would use the untrained values of
tool tokens. Here only trained tokens count: those of `loss_mask`, which is 0 for void episodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, NoReturn

import torch

from xp.episode.advantages import EPSILON, AdvantageFn, of_valid
from xp.worker.skyrl_names import XP_ESTIMATOR


@cache
def register_estimator() -> None:
    """Registers the name in this process, once; the registered function raises, since only xp's trainer may compute
    it."""
    from skyrl.backends.skyrl_train.utils.ppo_utils import AdvantageEstimatorRegistry

    AdvantageEstimatorRegistry.register(XP_ESTIMATOR, _elsewhere)


def _elsewhere(**_: Any) -> NoReturn:
    raise RuntimeError(
        "these advantages are computed by xp.backends.skyrl.worker.trainer.XpTrainer, not by SkyRL's own"
    )


def by_episode(
    rule: AdvantageFn,
    rewards: torch.Tensor,
    trained: torch.Tensor,
    groups: Sequence[str],
    is_void: Sequence[bool],
) -> torch.Tensor:
    """One advantage per episode, at its trained tokens; 0 elsewhere and for void episodes, which the rule does not get.

    Args:
        rule: function from the valid episodes of a step to one advantage each.
        rewards: (episodes, tokens); an episode's reward is their sum.
        trained: (episodes, tokens), 1 for the policy's tokens.
        groups: name of each episode's group.
        is_void: whether each episode is void.
    """
    totals = rewards.double().sum(-1).tolist()
    tokens = map(int, trained.sum(-1).tolist())
    scored = [None if void else total for total, void in zip(totals, is_void, strict=True)]
    advantages = of_valid(rule, scored, groups, list(tokens))
    return torch.tensor(advantages, dtype=rewards.dtype)[:, None] * trained


def gae(
    rewards: torch.Tensor,
    values: torch.Tensor,
    trained: torch.Tensor,
    discount: float,
    gae_lambda: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Generalized advantages (arXiv:1506.02438), whitened over the trained tokens, and the critic's target returns.

    A step leads from one trained token to the next one of its episode, across tool results in between; a reward belongs
    to the last trained token before it. Both results are 0 for tokens that are not trained.

    Args:
        rewards: (episodes, tokens).
        values: (episodes, tokens), value of the state before each token.
        trained: (episodes, tokens), 1 for the policy's tokens.
        discount: gamma.
        gae_lambda: lambda of the paper.
    """
    is_trained = trained > 0
    dtype = rewards.dtype
    rewards = rewards.double()
    values = values.double()
    advantages = torch.zeros_like(rewards)
    reward = next_value = running = torch.zeros_like(rewards[:, 0])
    for token in reversed(range(rewards.shape[1])):
        here = is_trained[:, token]
        reward = reward + rewards[:, token]
        advantage = (
            reward + discount * next_value - values[:, token] + discount * gae_lambda * running
        )
        advantages[:, token] = torch.where(here, advantage, 0.0)
        running = torch.where(here, advantage, running)
        next_value = torch.where(here, values[:, token], next_value)
        reward = torch.where(here, 0.0, reward)
    returns = torch.where(is_trained, advantages + values, 0.0)
    return _whitened(advantages, is_trained).to(dtype), returns.to(dtype)


def _whitened(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Values centred and scaled (n - 1) over the mask, 0 elsewhere; all 0 for fewer than two values."""
    chosen = values[mask]
    if len(chosen) < 2:
        return torch.zeros_like(values)
    return torch.where(mask, (values - chosen.mean()) * torch.rsqrt(chosen.var() + EPSILON), 0.0)


def critic_weights(
    trained: torch.Tensor, updates: Sequence[tuple[int, int]], settings: Any
) -> torch.Tensor:
    """Weights of the tokens in the critic's loss.

    The mean over an update's rows of their weighted sums equals the aggregation of the policy's loss over the update's
    tokens, or over its episodes with trained tokens.

    Args:
        trained: (episodes, tokens), 1 for the policy's tokens.
        updates: first row, and row after the last one, of each optimizer update.
        settings: SkyRL's AlgorithmConfig.
    """
    tokens = trained.sum(-1, keepdim=True)
    if settings.loss_reduction == "sequence_mean":
        weights = trained / tokens.clamp(min=1.0)
    else:
        weights = trained.clone()
    for begin, end in updates:
        divisor = loss_divisor(
            settings, float(tokens[begin:end].sum()), float((tokens[begin:end] > 0).sum())
        )
        weights[begin:end] *= (end - begin) / max(1.0, divisor)
    return weights


def loss_divisor(settings: Any, num_tokens: float, num_episodes: float) -> float:
    """Divisor of an update's loss by the aggregation of SkyRL's AlgorithmConfig, from what is trained on."""
    if settings.loss_reduction == "sequence_mean":
        return num_episodes
    if settings.loss_reduction == "seq_mean_token_sum_norm":
        return num_episodes * (settings.max_seq_len or 1)
    return num_tokens


def critic_loss(
    values: torch.Tensor,
    old_values: torch.Tensor,
    returns: torch.Tensor,
    config: Any,
    loss_mask: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """PPO's clipped value loss of a micro-batch, and the tokens whose value moved beyond the clip.

    SkyRL's own function counts each row as an episode, and one without trained tokens as a perfect one; here
    `loss_mask` has `critic_weights` instead.
    """
    clipped = old_values + (values - old_values).clamp(-config.value_clip, config.value_clip)
    plain = (values - returns) ** 2
    bounded = (clipped - returns) ** 2
    is_moved = (values - old_values).abs() > config.value_clip
    return 0.5 * (torch.maximum(plain, bounded) * loss_mask).sum(-1).mean(), is_moved
