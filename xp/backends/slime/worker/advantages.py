"""Advantages of a rollout step without void episodes, which Slime's own functions would count as rewards.

Slime's estimators grpo, gspo and cispo pass these advantages to every token, for any baseline.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xp.backends.slime.worker.config import WorkerConfig
from xp.backends.slime.worker.rollout_process import by_episode, is_void, read_played, worker_of
from xp.episode.advantages import (
    AdvantageFn,
    Valid,
    differ,
    estimator_of,
    of_valid,
    without_variance,
)
from xp.errors import ExitCode, XpError
from xp.spec import Estimator


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
    scored = [None if is_void(episode) else float(episode.reward) for episode in episodes]
    groups = [str(episode.group_index) for episode in episodes]
    estimates = of_valid(estimate, scored, groups, list(map(num_trained_tokens, episodes)))
    of_index = {
        episode.index: estimate for episode, estimate in zip(episodes, estimates, strict=True)
    }
    raw = [float(sample.reward) for sample in samples]
    return raw, [of_index[sample.index] for sample in samples]


def estimate_of(config: WorkerConfig, *, by_std: bool) -> AdvantageFn:
    """The estimator of a spec."""
    algorithm = config.spec.algorithm
    if algorithm.estimator is Estimator.GAE:
        return plain
    return estimator_of(algorithm, by_std=by_std)


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
    if sample.remove_sample:
        return 0
    return sum(sample.loss_mask)


def has_variance(args: Any, group: Sequence[Any]) -> Any:
    """Slime's dynamic sampling filter: returns whether the valid episodes of a group differ in reward
    (arXiv:2503.14476).

    Raises:
        XpError: (UNHEALTHY) too many episodes of this step are void; (NOT_TRAINED) too few of its groups differ.
            Without this, sampling would never end.
    """
    from slime.rollout.filter_hub.base_types import DynamicFilterOutput

    worker = worker_of(args)
    group = [sample[0] if isinstance(sample, list) else sample for sample in group]
    # The penalty for length is no variance: the paper's filter is on the answers' correctness.
    rewards = [
        float(read_played(sample.metadata).outcome.task_reward or 0.0)
        for sample in group
        if not is_void(sample)
    ]
    worker.judge(group, is_kept=differ(rewards))
    return DynamicFilterOutput(keep=differ(rewards))
