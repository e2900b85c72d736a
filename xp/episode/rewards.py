"""Computes an episode's reward from its step rewards, in the same way for every trainer."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from xp.envs.base import EnvFault
from xp.envs.config import MAX_REWARD, Reduction, RewardRule

REDUCTIONS: Mapping[Reduction, Callable[[Sequence[float]], float]] = {
    Reduction.SUM: math.fsum,
    Reduction.MEAN: lambda rewards: math.fsum(rewards) / len(rewards),
    Reduction.MAX: max,
    Reduction.MIN: min,
    Reduction.LAST: lambda rewards: rewards[-1],
}


class RewardOutOfBounds(EnvFault):
    """A reward that is infinite, not a number, or so large that its square exceeds float32."""


@dataclass(frozen=True)
class Overlong:
    """Soft punishment of long responses (DAPO, arXiv:2503.14476, eq. 13)."""

    max_response_tokens: int
    """L_max: response length with the whole penalty."""
    buffer_tokens: int
    """L_cache: tokens before L_max over which the penalty grows linearly from 0."""
    factor: float
    """Largest penalty; the paper's is 1."""

    def penalty(self, num_response: int) -> float:
        """Returns the penalty for a response with this number of tokens, from 0 to -factor."""
        excess = num_response - (self.max_response_tokens - self.buffer_tokens)
        return -self.factor * min(max(excess / self.buffer_tokens, 0.0), 1.0)


def check_bound(reward: float, what: str) -> None:
    """Raises RewardOutOfBounds unless `reward` is a number of at most MAX_REWARD.

    Args:
        what: source of the reward, for the message.
    """
    if not abs(reward) <= MAX_REWARD:  # Also true for NaN.
        raise RewardOutOfBounds(f"the reward of {what} is {reward:g}; at most {MAX_REWARD:g} counts")


def reduce_rewards(step_rewards: Sequence[float], finished: bool, rule: RewardRule) -> float:
    """The reward of an episode that is not void.

    Args:
        step_rewards: rewards of the steps that the environment scored, in order.
        finished: whether the environment ended the episode.
        rule: reduction, non-terminal reward and clamps.

    Returns:
        A finite number; 0.0 (clamped) if no step was scored, which counts as the model's failure.

    Raises:
        OverflowError: the rewards are finite, but their sum is not.
    """
    rewards = [*step_rewards]
    if not finished and rule.nonterminal is not None:
        rewards.append(rule.nonterminal)
    reward = REDUCTIONS[rule.reduction](rewards) if rewards else 0.0
    if not math.isfinite(reward):
        raise OverflowError(f"the {rule.reduction} of the step rewards is {reward}")
    if rule.minimum is not None:
        reward = max(reward, rule.minimum)
    if rule.maximum is not None:
        reward = min(reward, rule.maximum)
    return float(reward)
