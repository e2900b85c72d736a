"""Slime's encoding of a void episode: a reward that is not a number, on a sample that is left out of the loss."""

from __future__ import annotations

import math
from typing import Any, Final

VOID_REWARD: Final = math.nan
"""Reward of a void episode's sample; for None, Slime would call a reward model."""


def is_void(sample: Any) -> bool:
    """Returns whether a sample is of a void episode, or of one that nobody has scored yet."""
    return sample.reward is None or math.isnan(sample.reward)
