"""The user's own reward functions of an environment: one name, or a list with weights."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer
from pydantic_core import PydanticCustomError

from xp.spec.section import MODULE_PATH, ModulePath, Number, Section

PLAIN_WEIGHT = 1.0
"""Weight of a function that is given by its name alone."""


class WeightedFnSpec(Section):
    """One function and its share in the reward."""

    fn: ModulePath
    """`package.module:function`."""
    weight: Number
    """Factor of the function's value; the episode's reward is the sum over all functions."""


def _as_list(value: Any) -> Any:
    """Returns a list of functions with weights; one name becomes a list of one, with `PLAIN_WEIGHT`."""
    if isinstance(value, (list, tuple)):
        listed = value
    else:
        listed = [value]
    is_named = [
        re.match(MODULE_PATH, entry)
        if isinstance(entry, str)
        else isinstance(entry, (dict, WeightedFnSpec))
        for entry in listed
    ]
    if not listed or not all(is_named):
        message = "Input should be package.module:function, or a list of those and of {fn: ..., weight: ...}"
        raise PydanticCustomError("reward_fn_type", message)
    return tuple(
        {"fn": entry, "weight": PLAIN_WEIGHT} if isinstance(entry, str) else entry
        for entry in listed
    )


def _named_apart(listed: tuple[WeightedFnSpec, ...]) -> tuple[WeightedFnSpec, ...]:
    """Raises ValueError where two functions would share a metric."""
    names = [entry.fn.partition(":")[2] for entry in listed]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(
            f"two functions are called {', '.join(twice)}, but each is the metric reward_fn/<function>: rename one of"
            " them"
        )
    return listed


def _as_written(listed: tuple[WeightedFnSpec, ...]) -> Any:
    plain = [entry.fn if entry.weight == PLAIN_WEIGHT else entry.model_dump() for entry in listed]
    if len(plain) == 1 and isinstance(plain[0], str):
        return plain[0]
    return plain


RewardFns = Annotated[
    tuple[WeightedFnSpec, ...],
    BeforeValidator(_as_list),
    AfterValidator(_named_apart),
    PlainSerializer(_as_written),
    Field(min_length=1),
]
