"""Each token's loss and slope by the papers' formulas, for a step of Slime."""

from __future__ import annotations

import numpy as np

from tests.trainers.slime_update import MASKS, Step


def clipped(
    ratio: np.ndarray, advantage: float, low: float, high: float, dual: float | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """PPO (1707.06347): the loss, and its slope by the ratio; dual-clip PPO (1912.09729, eq. 5) bounds the loss."""
    plain = -ratio * advantage
    cut = -np.clip(ratio, 1 - low, 1 + high) * advantage
    loss = np.maximum(plain, cut)
    slope = np.where(plain >= cut, -advantage, 0.0)
    if dual is None or advantage >= 0:
        return loss, slope
    return np.minimum(loss, -dual * advantage), np.where(loss > -dual * advantage, 0.0, slope)


def papers(
    name: str, step: Step, low: float, high: float, dual: float | None = None
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Each token's loss, and the loss's slope by each token's log-probability; an episode's mean is not yet taken."""
    losses = []
    slopes = []
    for at, mask in enumerate(MASKS):
        gap = step.log_probs(at) - step.old[at]
        advantage = step.advantages[at]
        if name == "gspo":
            # 2507.18071, eq. 7: s = exp(mean of log-ratios). Each of n tokens moves it by s / n, and n tokens have it.
            ratio = np.full(len(mask), np.exp((gap * mask).sum() / max(1, mask.sum())))
            loss, slope = clipped(ratio, advantage, low, high, dual)
            slope = slope * ratio
        elif name == "cispo":
            # 2506.13585, eq. 4 and 5: the clipped ratio is a constant weight of the log-probability.
            weight = np.clip(np.exp(gap), 1 - low, 1 + high)
            loss = -weight * advantage * step.log_probs(at)
            slope = -weight * advantage
        else:
            ratio = np.exp(gap)
            loss, slope = clipped(ratio, advantage, low, high, dual)
            slope = slope * ratio
        losses.append(loss)
        slopes.append(slope)
    return losses, slopes
