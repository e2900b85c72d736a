"""Advantages of a rollout step's rewards, for the estimators that a trainer lacks or computes differently."""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any

from xp.errors import ExitCode, XpError
from xp.load import load_object

EPSILON = 1e-8
"""Added to a variance before its root, as the trainers' own whitening does."""


@dataclass(frozen=True)
class Valid:
    """An episode that was scored; void ones never reach an estimator."""

    reward: float
    """Settled and shaped."""
    group: str
    """The same for all episodes of one task in one step."""
    num_tokens: int
    """Trained ones: those that the policy wrote."""


AdvantageFn = Callable[[Sequence[Valid]], Sequence[float]]
"""Takes all valid episodes of a rollout step, gives back one advantage each, which all its tokens get."""


def reinforce_pp(episodes: Sequence[Valid]) -> list[float]:
    """REINFORCE++ (arXiv:2501.03262): rewards whitened over all trained tokens of the step.

    Without discount, and with the KL penalty in the loss, every token's return is its episode's reward, so that mean
    and variance (n - 1) over tokens are those over episodes weighted by their tokens.
    """
    tokens = sum(episode.num_tokens for episode in episodes)
    if tokens < 2:
        return [0.0] * len(episodes)
    mean = sum(episode.num_tokens * episode.reward for episode in episodes) / tokens
    squares = sum(episode.num_tokens * (episode.reward - mean) ** 2 for episode in episodes)
    scale = math.sqrt(squares / (tokens - 1) + EPSILON)
    return [(episode.reward - mean) / scale for episode in episodes]


def load_advantage_fn(name: str) -> AdvantageFn:
    """The function `package.module:function`, held to its contract; raises XpError where there is none."""
    try:
        found = load_object(name)
    except (ImportError, AttributeError) as error:
        raise XpError(f"advantage_fn {name} cannot be loaded: {error}") from error
    except Exception as error:
        raise XpError(f"advantage_fn {name} cannot be loaded: {_fault(error)}") from error
    if not callable(found):
        raise XpError(f"advantage_fn {name} cannot be loaded: it is not a function but {found!r:.100}")

    def checked(episodes: Sequence[Valid]) -> list[float]:
        """Raises XpError: it raised, or did not give one finite number an episode. That stops the run."""
        try:
            advantages = list(found(episodes))
        except Exception as error:
            raise XpError(f"advantage_fn {name} raised {_fault(error)}", ExitCode.STAGE_FAILED) from error
        if len(advantages) != len(episodes) or not all(map(_is_number, advantages)):
            raise XpError(
                f"advantage_fn {name} gave {advantages!r:.200} for {len(episodes)} episodes; it must give one finite"
                " number for each",
                ExitCode.STAGE_FAILED,
            )
        return [float(advantage) for advantage in advantages]

    return checked


def _fault(error: Exception) -> str:
    """Type, text and position of an exception."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({Path(last.filename).name}, line {last.lineno})"


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
