"""Applies the user's reward functions once to the settled EpisodeResult, in the same way on every backend."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from numbers import Real
from typing import Any, Final

from xp.episode.outcome import EpisodeResult
from xp.errors import XpError
from xp.lib.load import load_object

REWARD: Final = "reward"
"""Key of the reward in a dictionary that a function returns; every other entry is a metric."""


@dataclass(frozen=True)
class Shape:
    """A user's reward function."""

    name: str
    """`package.module:function`, for records and messages."""
    call: Callable[..., Any]
    parameters: tuple[str, ...] | None
    """Names of its keyword arguments. None means that its only argument is the EpisodeResult, by position."""
    weight: float = 1.0
    """Factor of its value in the episode's reward."""

    def wants(self, name: str) -> bool:
        """Returns whether the function has a parameter of this name, one of ABOUT."""
        return self.parameters is not None and name in self.parameters


def load_shape(name: str, weight: float = 1.0, call: Callable[..., Any] | None = None) -> Shape:
    """Loads the function `package.module:function`; raises XpError if it does not exist.

    Args:
        call: calls a function, by its name, in another process. None means that it is called here.
    """
    try:
        function = load_object(name)
    except (ImportError, AttributeError) as error:
        raise XpError(f"reward_fn {name} cannot be loaded: {error}") from error
    called = function if call is None else partial(call, name)
    return Shape(name, called, _parameters(name, function), weight)


class RewardFnFault(Exception):
    """A reward function of the user raised an exception, or returned no number."""


def shaped_reward(
    outcome: EpisodeResult, shapes: Sequence[Shape], about: Mapping[str, Any]
) -> tuple[float, dict[str, float]]:
    """The weighted sum of the functions' rewards, and their metrics.

    Args:
        outcome: argument of each function.
        shapes: the functions. If there are several, each one's reward is a metric, and its other metrics have its name.
        about: data of the episode, by the keywords in ABOUT.

    Raises:
        RewardFnFault: a function fails; the message has its name.
    """
    reward = 0.0
    metrics: dict[str, float] = {}
    for shape in shapes:
        try:
            value, entries = numbers_of(_called(shape, {"outcome": outcome, **about}))
        except Exception as error:
            raise RewardFnFault(
                f"reward_fn {shape.name}: {type(error).__name__}: {error}"
            ) from error
        reward += shape.weight * value
        if len(shapes) > 1:
            function = shape.name.partition(":")[2]
            entries = {f"{function}/{name}": entry for name, entry in entries.items()}
            entries[function] = value
        metrics |= entries
    return reward, metrics


ABOUT: Final = ("outcome", "env", "split", "index", "task", "messages", "tool_calls", "tokens")
"""Names of parameters that a function may have."""


def _parameters(name: str, function: Any) -> tuple[str, ...] | None:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError) as error:
        raise XpError(f"reward_fn {name} cannot be called: {error}") from error
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return ABOUT
    needed = [
        parameter.name
        for parameter in parameters
        if parameter.default is parameter.empty and parameter.kind is not parameter.VAR_POSITIONAL
    ]
    if len(parameters) == 1 and needed and needed[0] not in ABOUT[1:]:
        return None
    unknown = [name for name in needed if name not in ABOUT]
    if unknown:
        raise XpError(
            f"reward_fn {name} has unknown parameters {', '.join(unknown)}; legal ones are {', '.join(ABOUT)}"
        )
    return tuple(parameter.name for parameter in parameters if parameter.name in ABOUT)


def _called(shape: Shape, about: Mapping[str, Any]) -> Any:
    if shape.parameters is None:
        return shape.call(about["outcome"])
    return shape.call(**{name: about[name] for name in shape.parameters})


def numbers_of(result: Any) -> tuple[float, dict[str, float]]:
    """The reward and the metrics that a function gave for one episode; raises ValueError."""
    entries = result if isinstance(result, Mapping) else {REWARD: result}
    if REWARD not in entries:
        raise ValueError(f"it gave no {REWARD!r} among {sorted(map(str, entries))[:5]}")
    for name, value in entries.items():
        # Real: NumPy's numbers too, which a grader may give as well.
        if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
            raise ValueError(
                f"it gave {value!r:.80} for {name!s:.80}; it must give a finite number"
            )
    numbers = {str(name): float(value) for name, value in entries.items()}
    return numbers.pop(REWARD), numbers
