"""Advantages of a rollout step, a void episode outside of its group: Slime's own mean would count it as a reward."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Any

from xp.backends.slime.worker import worker

EPSILON = 1e-6
"""Added to a group's standard deviation, as in Slime's own normalization (slime/ray/rollout.py)."""


def post_process(args: Any, samples: Sequence[Any]) -> tuple[list[float], list[float]]:
    """Slime's reward post-processing: each reward minus its group's baseline, over the valid episodes alone.

    Args:
        args: Slime's; `grpo_std_normalization` says whether they are divided by the group's standard deviation.
        samples: of the whole step; those of one group share `group_index`.

    Returns:
        Raw rewards (not a number: void) and advantages (0: void), one each a sample.
    """
    return advantages(samples, worker(args).config.estimator, by_std=args.grpo_std_normalization)


def advantages(samples: Sequence[Any], estimator: str, *, by_std: bool) -> tuple[list[float], list[float]]:
    """`post_process` with its settings written out; `estimator` is `grpo` or `rloo`."""
    baseline = left_out if estimator == "rloo" else centred
    groups: dict[Any, list[int]] = {}
    for position, sample in enumerate(samples):
        groups.setdefault(sample.group_index, []).append(position)
    raw = [float(sample.reward) for sample in samples]
    found = [0.0] * len(samples)
    for positions in groups.values():
        valid = [position for position in positions if not math.isnan(raw[position])]
        own = baseline([raw[position] for position in valid], by_std=by_std)
        for position, advantage in zip(valid, own, strict=True):
            found[position] = advantage
    return raw, found


def centred(rewards: Sequence[float], *, by_std: bool) -> list[float]:
    """GRPO (arXiv:2402.03300): rewards minus their mean, over their standard deviation (n - 1) where asked.

    One reward alone has no baseline: 0.
    """
    if len(rewards) < 2:
        return [0.0] * len(rewards)
    mean = fmean(rewards)
    scale = stdev(rewards) + EPSILON if by_std else 1.0
    return [(reward - mean) / scale for reward in rewards]


def left_out(rewards: Sequence[float], *, by_std: bool) -> list[float]:
    """RLOO (arXiv:2402.14740): rewards minus the mean of the others; never scaled."""
    assert not by_std  # the spec refuses it
    factor = len(rewards) / max(1, len(rewards) - 1)
    return [factor * reward for reward in centred(rewards, by_std=False)]


def has_variance(args: Any, group: Sequence[Any]) -> Any:
    """Slime's dynamic sampling filter: whether the valid episodes of a group differ in reward (arXiv:2503.14476).

    Raises:
        XpError: (UNHEALTHY) so many episodes of this step are void that it would be stopped; a filter that only left
            such groups out would ask a failing environment for ever.
    """
    from slime.rollout.filter_hub.base_types import DynamicFilterOutput

    worker(args).check_so_far()
    rewards = [sample.reward for sample in group if sample.reward is not None and not math.isnan(sample.reward)]
    if len(rewards) > 1 and max(rewards) - min(rewards) > EPSILON:
        return DynamicFilterOutput(keep=True)
    return DynamicFilterOutput(keep=False, reason=f"zero_std_{rewards[0]:.1f}" if rewards else "void")
