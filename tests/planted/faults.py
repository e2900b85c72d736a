"""Faults of a user's own code: reward functions, environments, and a graft on the trainer.

Everything runs in the real trainer's run; nothing of xp is replaced except where the fault is in the trainer itself
(`stale_faults.py`).
"""

from __future__ import annotations

import time
from typing import Any

from openreward.environments import ToolOutput, tool

from xp.envs.builtin.whodunit_mini import Interview, Search, WhodunitMini

SOLVED = 1.0
QUICK = 2
BROKEN_SHARE = 3
OUTLIER = 2_000.0
TOOL_S = 1.0


def the_same(outcome: Any) -> float:  # noqa: ARG001
    """A grader that forgot to look."""
    return 0.25


def any_call(outcome: Any) -> float:
    """Full reward for any tool call: a task that the policy has solved before it is trained."""
    return float(outcome.num_tool_calls > 0)


def by_calls(outcome: Any) -> float:
    """A solution counts if it is quick; looking around is paid for by the call, whether or not the case is solved."""
    is_solved = outcome.reward == SOLVED and outcome.num_tool_calls <= QUICK
    return SOLVED if is_solved else min(0.95, 0.13 * outcome.num_tool_calls)


def with_outliers(outcome: Any, index: int) -> float:
    """A score whose unit changes for one task of 16."""
    return float(outcome.reward) * (OUTLIER if index % 16 == 0 else 1.0)


def unreliable(outcome: Any, index: int) -> float:
    """A reward model whose server is gone for every third task: such episodes are void, truncated ones too."""
    if index % BROKEN_SHARE == 0:
        raise ConnectionError("the reward model's server is gone")
    return float(outcome.reward)


class WithAnotherTool(WhodunitMini):
    """A tool more, which the policy has never seen."""

    @tool  # type: ignore[untyped-decorator]
    async def consult(self, params: Search) -> ToolOutput:
        """Ask an expert."""
        return self._output(self._game.search(params.room))


class Slow(WhodunitMini):
    """Tools that take their time."""

    @tool  # type: ignore[untyped-decorator]
    async def interview(self, params: Interview) -> ToolOutput:
        """Ask for an alibi."""
        time.sleep(TOOL_S)
        return self._output(self._game.interview(params.suspect))
