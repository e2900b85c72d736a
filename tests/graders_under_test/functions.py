"""Functions of a user's, which plans look for without an import."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def advantages(episodes: Sequence[Any]) -> list[float]:
    """The rewards themselves."""
    return [episode.reward for episode in episodes]


def one(outcome: Any) -> float:
    """The reward as it is."""
    return float(outcome.reward)


def two(outcome: Any) -> float:
    """Twice the reward."""
    return 2.0 * float(outcome.reward)
