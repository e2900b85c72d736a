"""A user's own reward: one function by name, applied once to the settled Outcome, the same on every backend."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from dataclasses import replace

from xp.episode.outcome import Outcome
from xp.errors import ExitCode, XpError

Shape = Callable[[Outcome], float]
"""Takes the Outcome of an episode that was scored, gives back its reward."""


def load_shape(name: str) -> Shape:
    """The function `package.module:function`; raises XpError where there is none."""
    module, _, function = name.partition(":")
    try:
        shape: Shape = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise XpError(f"reward_fn {name} cannot be loaded: {error}") from error
    return shape


def shaped(outcome: Outcome, shape: Shape) -> Outcome:
    """The outcome with the function's reward; a void one stays as it is.

    Raises:
        XpError: the function raised, or gave back something that is no finite number. That is no outage, so it stops
            the run instead of leaving the episode out.
    """
    if outcome.reward is None:
        return outcome
    try:
        reward = shape(outcome)
    except Exception as error:
        raise XpError(f"reward_fn raised {type(error).__name__}: {error}", ExitCode.STAGE_FAILED) from error
    if isinstance(reward, bool) or not isinstance(reward, (int, float)) or not math.isfinite(reward):
        raise XpError(f"reward_fn gave {reward!r}; it must give a finite number", ExitCode.STAGE_FAILED)
    return replace(outcome, reward=float(reward))
