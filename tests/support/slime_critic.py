"""PPO's advantages and returns by the papers' formulas, for a step of Slime."""

from __future__ import annotations

import numpy as np

from tests.trainers.slime_update import MASKS, REWARDS, Step

PPO = (
    "algorithm=ppo",
    "backend.convert_model=true",
    "algorithm.critic={discount: 0.97, gae_lambda: 0.9, value_clip: 0.3}",
)


def papers(
    values: np.ndarray, reward: float, discount: float, gae_lambda: float
) -> tuple[np.ndarray, np.ndarray]:
    """1506.02438, eq. 16, as the sum that it is: of all later errors, each discounted by gamma x lambda a token."""
    following = np.append(values[1:], 0.0)
    rewards = np.append(np.zeros(len(values) - 1), reward) if len(values) else values
    errors = rewards + discount * following[: len(values)] - values
    powers = (discount * gae_lambda) ** np.arange(len(values))
    advantages = np.array(
        [(errors[at:] * powers[: len(values) - at]).sum() for at in range(len(values))]
    )
    return advantages, advantages + values


def papers_of_step(step: Step) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Advantages and returns by the paper's formulas over the policy's tokens; [response] each, 0 elsewhere."""
    found: tuple[list[np.ndarray], list[np.ndarray]] = ([], [])
    for mask, values, reward in zip(MASKS, step.values, REWARDS, strict=True):
        for whole, own in zip(found, papers(values[mask == 1], reward, 0.97, 0.9), strict=True):
            whole.append(np.zeros(len(mask)))
            whole[-1][mask == 1] = own
    return found
