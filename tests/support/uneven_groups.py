"""Rewards of groups for dynamic sampling, most of which have no variance."""

from __future__ import annotations

import random

SIZE = 3


def uneven(number: int) -> list[float | None]:
    """About every fourth group has variance; others are equal but for rounding, or void but for one."""
    draw = random.Random(number)
    flat: list[list[float | None]] = [
        [0.1] * SIZE,
        [1.0, None, 1.0],
        [None, 0.7, None],
        [None] * SIZE,
    ]
    return [0.0, 1.0, draw.choice([0.5, None])] if draw.random() < 0.25 else draw.choice(flat)


def has_variance(rewards: list[float | None]) -> bool:
    return len({reward for reward in rewards if reward is not None}) > 1
