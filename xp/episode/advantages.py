"""Computes advantages of a rollout step, for estimators that a trainer lacks or computes differently.

Those of on-policy distillation come from a teacher's log-probabilities: one formula for all trainers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean, stdev
from typing import Any, Final

from xp.errors import XpError
from xp.lib.load import load_estimate
from xp.lib.nested import grouped
from xp.spec import AdvantageScale, Algorithm, Distill, Estimator

DISTILL_KL: Final = "training/distill_kl"
EPSILON = 1e-8
"""Added to a variance before its square root, as in the trainers' own whitening."""
STD_EPSILON = 1e-6
"""Added to a standard deviation of rewards, as in SkyRL and Slime."""


@dataclass(frozen=True)
class Valid:
    """A scored episode; estimators never get void ones."""

    reward: float
    """The settled reward, after the user's reward functions."""
    group: str
    """Name of the group: the same for all episodes of one task in one step."""
    num_tokens: int
    """Number of trained tokens, which the policy wrote."""


def check_not_negative(rewards: Iterable[float]) -> None:
    """Raises XpError(CONFIG) for a reward below 0, with which MaxRL's division by the group's mean has no meaning."""
    lowest = min(rewards, default=0.0)
    if lowest < 0:
        raise XpError(
            f"algorithm.estimator=maxrl divides by the group's mean reward, and a reward is {lowest:g}; use rewards of"
            " at least 0, or another algorithm"
        )


EQUAL = 1e-6
"""Largest difference of rewards that does not count as variance."""


def without_variance(rewards: Sequence[float | None], groups: Sequence[str]) -> list[bool]:
    """Returns for each episode whether its group's valid episodes, two or more, all have the same reward.

    Args:
        rewards: of all episodes. None means void.
        groups: name of each episode's group.
    """
    valid = of_groups(rewards, groups)
    return [len(valid.get(group, ())) > 1 and not differ(valid[group]) for group in groups]


def of_groups(rewards: Sequence[float | None], groups: Sequence[str]) -> dict[str, list[float]]:
    """Rewards of each group's valid episodes; arguments as of `without_variance`."""
    return grouped(
        (group, reward) for group, reward in zip(groups, rewards, strict=True) if reward is not None
    )


def differ(rewards: Sequence[float]) -> bool:
    """Returns whether the rewards of a group's valid episodes differ; dynamic sampling keeps such groups only."""
    return len(rewards) > 1 and max(rewards) - min(rewards) > EQUAL


AdvantageFn = Callable[[Sequence[Valid]], Sequence[float]]
"""Function from all valid episodes of a rollout step to one advantage each, which all its tokens get."""


def reinforce_pp(episodes: Sequence[Valid]) -> list[float]:
    """Advantages of REINFORCE++ (arXiv:2501.03262): rewards whitened over all trained tokens of the step.

    Without discount, and with the KL penalty in the loss, every token's return is its episode's reward, so that mean
    and variance (n - 1) over tokens are those over episodes weighted by their tokens.
    """
    tokens = sum(episode.num_tokens for episode in episodes)
    if tokens < 2:
        return [0.0] * len(episodes)
    average = sum(episode.num_tokens * episode.reward for episode in episodes) / tokens
    squares = sum(episode.num_tokens * (episode.reward - average) ** 2 for episode in episodes)
    scale = math.sqrt(squares / (tokens - 1) + EPSILON)
    return [(episode.reward - average) / scale for episode in episodes]


def reinforce_pp_baseline(episodes: Sequence[Valid]) -> list[float]:
    """Advantages of REINFORCE++-baseline: `reinforce_pp` of the rewards minus the mean of their group."""
    centred_episodes = zip(episodes, centred(episodes), strict=True)
    return reinforce_pp([replace(episode, reward=reward) for episode, reward in centred_episodes])


def over_batch_std(episodes: Sequence[Valid]) -> list[float]:
    """GRPO's centred rewards divided by the standard deviation (n - 1) of the step's rewards, as TRL's
    `scale_rewards=batch`."""
    if len(episodes) < 2:
        return [0.0] * len(episodes)
    scale = stdev(episode.reward for episode in episodes) + STD_EPSILON
    return over(episodes, divisor=lambda _: scale)


def centred(episodes: Sequence[Valid]) -> list[float]:
    """Rewards minus the mean of their group."""
    return over(episodes, divisor=lambda _: 1.0)


RULES: Mapping[tuple[Estimator, AdvantageScale], AdvantageFn] = {
    (Estimator.REINFORCE_PP, AdvantageScale.BATCH_STD): reinforce_pp,
    (Estimator.REINFORCE_PP_BASELINE, AdvantageScale.BATCH_STD): reinforce_pp_baseline,
    (Estimator.GRPO, AdvantageScale.BATCH_STD): over_batch_std,
}


def advantage_rule(algorithm: Algorithm) -> AdvantageFn | None:
    """The function that computes the advantages of whole episodes. None means that a trainer or a critic does.

    Raises XpError if it cannot be loaded.
    """
    if algorithm.advantage_fn is not None:
        return load_advantage_fn(algorithm.advantage_fn)
    return RULES.get((algorithm.estimator, algorithm.advantage_scale))


Divisor = Callable[[Sequence[float]], float]
"""Function from the rewards of one group to a number."""


def estimator_of(algorithm: Algorithm, *, by_std: bool) -> AdvantageFn:
    """The function that computes the advantages of whole episodes, for a trainer that has none of its own.

    Args:
        algorithm: the spec's, without a critic.
        by_std: whether GRPO's are divided by the standard deviation of the group.
    """
    rule = advantage_rule(algorithm)
    if rule is not None:
        return rule
    divisors: Mapping[str, Divisor] = {
        "grpo": deviation if by_std else lambda _: 1.0,
        "rloo": share_of_others,
        "maxrl": mean,
    }
    return partial(over, divisor=divisors[algorithm.estimator])


def over(episodes: Sequence[Valid], *, divisor: Divisor) -> list[float]:
    """Rewards minus the mean of their group, which is 0 for a single one, divided by a number of the group."""
    groups = grouped((episode.group, episode.reward) for episode in episodes)
    means = {group: fmean(rewards) for group, rewards in groups.items()}
    divisors = {group: divisor(rewards) for group, rewards in groups.items()}
    return [
        (episode.reward - means[episode.group]) / divisors[episode.group] for episode in episodes
    ]


def deviation(rewards: Sequence[float]) -> float:
    """Divisor of GRPO (arXiv:2402.03300): the standard deviation (n - 1), or 1."""
    if len(rewards) > 1:
        return stdev(rewards) + STD_EPSILON
    return 1.0


def share_of_others(rewards: Sequence[float]) -> float:
    """Divisor of RLOO (arXiv:2402.14740), with which the baseline is the mean of the others; never scaled."""
    return max(1, len(rewards) - 1) / len(rewards)


def mean(rewards: Sequence[float]) -> float:
    """Divisor of MaxRL (arXiv:2602.02710): the mean; never scaled."""
    check_not_negative(rewards)
    return fmean(rewards) + STD_EPSILON


def of_valid(
    rule: AdvantageFn,
    rewards: Sequence[float | None],
    groups: Sequence[str],
    num_tokens: Sequence[int],
) -> list[float]:
    """Advantages of all episodes of a step; 0 for void ones, which the rule does not get.

    Args:
        rule: function from the valid episodes to one advantage each.
        rewards: of each episode. None means void.
        groups: name of each episode's group.
        num_tokens: number of each episode's trained tokens.
    """
    valid = {
        at: Valid(reward, groups[at], num_tokens[at])
        for at, reward in enumerate(rewards)
        if reward is not None
    }
    estimates = dict(zip(valid, rule(list(valid.values())) if valid else (), strict=True))
    return [estimates.get(at, 0.0) for at in range(len(rewards))]


def load_advantage_fn(name: str) -> AdvantageFn:
    """Loads the function `package.module:function`, with checks of its results; raises XpError if it does not exist."""
    return load_estimate("advantage_fn", name, "episodes")


def distilled(
    rule: Distill, of_reward: Any, teacher: Any, policy: Any, mask: Any
) -> tuple[Any, Any]:
    """Advantages of the tokens, 0 where nothing is trained, and the sum of the policy's gaps to the teacher.

    Args:
        rule: a spec's `algorithm.distill`.
        of_reward: advantages from the rewards, (episodes, tokens) or (episodes, 1).
        teacher: (episodes, tokens), the teacher's log-probabilities.
        policy: the same shape, the policy's before the update.
        mask: the same shape, above 0 for trained tokens.
    """
    is_trained = mask > 0
    gap = (policy - teacher).detach().masked_fill(~is_trained, 0.0)
    base = of_reward * is_trained if rule.beside_reward else 0.0
    return base - rule.coef * gap, gap.sum()
