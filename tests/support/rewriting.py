"""A program in memory with a sub-agent, which goes back to its first turn; and what its rows of tokens must be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.support.fake_session import RULES, FakeSession
from tests.support.sections import replace
from xp.envs.base import (
    NEW_PROMPT,
    EnvUnavailable,
    Message,
    ModelMessage,
    TakenResult,
    Task,
    ToolResult,
)
from xp.episode.episode import Episode
from xp.spec.env import ToolCallsPerTurn

PROGRAM = (
    *(
        "env=harness",
        "env.target=https://example.org",
        "env.sandbox=none",
        "env.options.command=agent",
    ),
    "env.options.max_rows=4",
)
"""Overrides of an environment whose episodes may have several rows."""
FOLLOWS = (None, NEW_PROMPT, 1, 0)
"""What each of four requests follows: the last one, nothing, the turn before, and the first."""
LEFT = 3
"""The turn that the program does not wait for."""
TEXTS = tuple(f"I say {number}." for number in range(1 + len(FOLLOWS)))


class RewritingSession(FakeSession):
    takes_answer = True

    def __init__(self, *, fails: bool) -> None:
        super().__init__(lambda *_: ToolResult(""))
        self._fails = fails

    def take(self, message: ModelMessage) -> TakenResult:
        self.answers.append(message.message["content"])
        if self._fails:
            raise EnvUnavailable("down")
        number = len(self.answers) - 1
        if number == len(FOLLOWS):
            return TakenResult("", 1.0, finished=True, undelivered=(LEFT,))
        return TakenResult(
            "", messages=(Message(role="user", content=f"{number}?"),), follows=FOLLOWS[number]
        )


class RewritingMix:
    """Environments of such programs; some episodes may fail at their first turn."""

    def __init__(self, fails: Sequence[bool] = (False,)) -> None:
        self._fails = fails
        self._number = 0

    def episode(self, row: Any) -> Episode:
        rules = replace(RULES, tool_calls_per_turn=ToolCallsPerTurn.ALL)
        fails = self._fails[self._number % len(self._fails)]
        self._number += 1
        return Episode(
            Task(row.env, row.split, row.index), lambda: RewritingSession(fails=fails), rules
        )

    def scores_groups(self, env: str) -> bool:
        return False

    def max_sessions(self) -> int:
        return 8


def check_rows(
    asked: Sequence[list[int]], rows: Sequence[tuple[list[int], list[int], list[int]]]
) -> None:
    """Each delivered turn is trained once, in its own context.

    Args:
        asked: contexts of the engine's turns.
        rows: prompt, response and mask of each row.
    """
    trained = []
    for prompt, response, mask in rows:
        starts = [
            at
            for at, (one, before) in enumerate(zip(mask, [0, *mask], strict=False))
            if one and not before
        ]
        trained += [asked.index([*prompt, *response[:start]]) for start in starts]
    assert sorted(trained) == [number for number in range(len(TEXTS)) if number != LEFT]
