"""Tokens and price of an episode's judge models (xp.envs.base.ToolResult.judges)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Final

from pydantic import Field

from xp.envs.base import EnvFault

READ: Final = "prompt_tokens"
WRITTEN: Final = "completion_tokens"
COST: Final = "cost_usd"
Usd = Annotated[float, Field(ge=0)]
Prices = dict[str, tuple[Usd, Usd]]
"""Name of a model -> US dollars per million input tokens, and per million output tokens."""


class JudgeFault(EnvFault):
    """A judge gave no verdict; what it should have scored is void."""

    def __init__(self, message: str, usage: Mapping[str, float] | None = None) -> None:
        super().__init__(message)
        self.usage = usage or {}
        """Usage of the judge before it failed."""


@dataclass(frozen=True)
class JudgeCall:
    """Tokens of another model than the trained one in an episode."""

    model: str
    read: int
    written: int
    cost_usd: float | None = None
    """Cost in US dollars from its endpoint. None means that it is not reported, so that a price is needed."""


def usage_of_judges(
    calls: Sequence[JudgeCall], prices: Mapping[str, Sequence[float]]
) -> dict[str, float]:
    """Sums over an episode's judges; empty without judges; without `cost_usd` if a price is unknown."""
    if not calls:
        return {}
    sums = {
        READ: float(sum(call.read for call in calls)),
        WRITTEN: float(sum(call.written for call in calls)),
    }
    cost = 0.0
    for call in calls:
        price = prices.get(call.model)
        if price is not None:
            cost += (call.read * price[0] + call.written * price[1]) / 1e6
        elif call.cost_usd is not None:
            cost += call.cost_usd
        else:
            return sums
    return sums | {COST: cost}


def total_usage(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Sums over parts that each have a usage of judges; an entry that one of them lacks is unknown."""
    used = [part for part in parts if part]
    return {
        name: sum(part[name] for part in used)
        for name in (used or [{}])[0]
        if all(name in part for part in used)
    }
