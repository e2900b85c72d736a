"""Advantages of a rollout step without void episodes, which Slime's own functions would count as rewards.

Slime's estimators grpo, gspo and cispo pass these advantages to every token, for any baseline.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import fmean, stdev
from typing import Any

from xp.backends.slime.worker.config import WorkerConfig
from xp.backends.slime.worker.rollout_process import by_episode, is_void, read_played, worker_of
from xp.episode.advantages import (
    STD_EPSILON,
    AdvantageFn,
    Valid,
    advantage_rule,
    check_not_negative,
    differ,
    of_valid,
    without_variance,
)
from xp.errors import ExitCode, XpError
from xp.spec import Estimator

Baseline = Callable[[Sequence[float]], list[float]]
"""Function from the rewards of one group to their advantages."""


def post_process(args: Any, samples: Sequence[Any]) -> tuple[list[float], list[float]]:
    """Slime's reward post-processing.

    Args:
        args: Slime's arguments; `grpo_std_normalization`: whether to divide by the group's standard deviation.
        samples: samples of the whole step; those of one group share `group_index`.

    Returns:
        Raw rewards (NaN: void) and advantages (0: void, or a teacher's alone, which Slime adds token by token), one per
        sample. With a critic, the second are the rewards,
        from which `xp.backends.slime.worker.gae` computes advantages token by token.

    Raises:
        XpError: the user's own advantage function failed; or there is a critic and nothing to train it on.
    """
    config = worker_of(args).config
    if config.spec.algorithm.zero_variance_filter:
        rewards = [None if is_void(sample) else float(sample.reward) for sample in samples]
        flat = without_variance(rewards, [str(sample.group_index) for sample in samples])
        for sample, is_flat in zip(samples, flat, strict=True):
            sample.remove_sample |= is_flat
    raw, estimates = advantages(samples, estimate_of(config, by_std=args.grpo_std_normalization))
    distill = config.spec.algorithm.distill
    is_alone = distill is not None and not distill.beside_reward
    return raw, [0.0] * len(samples) if is_alone else estimates


def advantages(samples: Sequence[Any], estimate: AdvantageFn) -> tuple[list[float], list[float]]:
    """Does the work of `post_process`, with the estimator as an argument."""
    episodes = by_episode(samples)
    scored = [None if is_void(one) else float(one.reward) for one in episodes]
    groups = [str(one.group_index) for one in episodes]
    estimates = of_valid(estimate, scored, groups, list(map(num_trained_tokens, episodes)))
    of_index = {one.index: estimate for one, estimate in zip(episodes, estimates, strict=True)}
    return [float(sample.reward) for sample in samples], [of_index[sample.index] for sample in samples]


def estimate_of(config: WorkerConfig, *, by_std: bool) -> AdvantageFn:
    """The estimator of a spec."""
    algorithm = config.spec.algorithm
    if (rule := advantage_rule(algorithm)) is not None:
        return rule
    if algorithm.estimator is Estimator.GAE:
        return plain
    of_group = partial(centred, by_std=by_std)
    baselines: Mapping[str, Baseline] = {"grpo": of_group, "rloo": left_out, "maxrl": over_mean}
    return partial(by_group, baseline=baselines[algorithm.estimator])


def by_group(episodes: Sequence[Valid], *, baseline: Baseline) -> list[float]:
    """Advantages of each episode relative to its own group."""
    groups: dict[str, list[int]] = {}
    for position, episode in enumerate(episodes):
        groups.setdefault(episode.group, []).append(position)
    estimates = [0.0] * len(episodes)
    for positions in groups.values():
        group_estimates = baseline([episodes[position].reward for position in positions])
        for position, advantage in zip(positions, group_estimates, strict=True):
            estimates[position] = advantage
    return estimates


def centred(rewards: Sequence[float], *, by_std: bool = False) -> list[float]:
    """GRPO (arXiv:2402.03300): rewards minus their mean, optionally divided by their standard deviation (n - 1).

    A single reward has no baseline; its advantage is 0.
    """
    if len(rewards) < 2:
        return [0.0] * len(rewards)
    mean = fmean(rewards)
    scale = stdev(rewards) + STD_EPSILON if by_std else 1.0
    return [(reward - mean) / scale for reward in rewards]


def left_out(rewards: Sequence[float]) -> list[float]:
    """RLOO (arXiv:2402.14740): rewards minus the mean of the others; never scaled."""
    factor = len(rewards) / max(1, len(rewards) - 1)
    return [factor * reward for reward in centred(rewards)]


def over_mean(rewards: Sequence[float]) -> list[float]:
    """MaxRL (arXiv:2602.02710): rewards minus their mean, divided by it; never scaled."""
    check_not_negative(rewards)
    scale = fmean(rewards) + STD_EPSILON
    return [reward / scale for reward in centred(rewards)]


def plain(episodes: Sequence[Valid]) -> list[float]:
    """The rewards, for a critic; Slime whitens over trained tokens, and crashes if a step has none."""
    if not any(episode.num_tokens for episode in episodes):
        raise XpError(
            "no episode of this step has a token to train on, so that its advantages cannot be whitened; where all of"
            " them were cut, set algorithm.mask_truncated=false or training.max_response_tokens higher",
            ExitCode.UNHEALTHY,
        )
    return [episode.reward for episode in episodes]


def num_trained_tokens(sample: Any) -> int:
    """Number of tokens of a sample in the loss; 0 if the sample is excluded as truncated."""
    return 0 if sample.remove_sample else sum(sample.loss_mask)


def has_variance(args: Any, group: Sequence[Any]) -> Any:
    """Slime's dynamic sampling filter: returns whether the valid episodes of a group differ in reward
    (arXiv:2503.14476).

    Raises:
        XpError: (UNHEALTHY) too many episodes of this step are void; (NOT_TRAINED) too few of its groups differ.
            Without this, sampling would never end.
    """
    from slime.rollout.filter_hub.base_types import DynamicFilterOutput

    worker, group = worker_of(args), [one[0] if isinstance(one, list) else one for one in group]
    # The penalty for length is no variance: the paper's filter is on the answers' correctness.
    rewards = [float(read_played(one.metadata).outcome.task_reward or 0.0) for one in group if not is_void(one)]
    worker.judge(group, is_kept=differ(rewards))
    return DynamicFilterOutput(keep=differ(rewards))
