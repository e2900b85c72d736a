"""A session in another process; faults there do not end the stage."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from xp.envs.base import EnvFault, Message, SessionLost, ToolResult, ToolSpec
from xp.envs.child_process import Child
from xp.errors import XpError
from xp.spec.env import EnvLimits

PROGRAM: Final = "xp.envs.host"
"""The program of that process, with one provider."""
GRACE_S: Final = 10.0
"""Seconds beyond a call's deadline, which the child applies itself if it can."""


class HostedSession:
    """See xp.envs.base.Session; its other side is in a child process.

    Args:
        child: the process.
        number: number of the conversation there.
        opened: `prompt`, `tools` and `takes_answer`.
        limits: limits of the environment.
    """

    grace_s = GRACE_S

    def __init__(
        self, child: Child, number: int, opened: Mapping[str, Any], limits: EnvLimits
    ) -> None:
        self._child = child
        self._number = number
        self._limits = limits
        self._opening: list[Message] = opened["prompt"]
        self._tools: tuple[ToolSpec, ...] = opened["tools"]
        self.takes_answer: bool = opened["takes_answer"]
        self._is_closed = False

    def prompt(self) -> list[Message]:
        return list(self._opening)

    def tools(self) -> tuple[ToolSpec, ...]:
        return self._tools

    def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        return self._do("call", (name, dict(arguments)), f"the tool {name}")

    def answer(self, text: str) -> ToolResult:
        return self._do("answer", text, "the answer")

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            limit_s = self._limits.call_timeout_s + self.grace_s
            with suppress(EnvFault, XpError):
                self._child.ask("close", self._number, None, limit_s, "the close")

    def _do(self, verb: str, argument: Any, what: str) -> ToolResult:
        self._check_open()
        limit_s = self._limits.call_timeout_s + self.grace_s
        result: ToolResult = self._child.ask(verb, self._number, argument, limit_s, what)
        return result

    def _check_open(self) -> None:
        if self._is_closed:
            raise SessionLost("the session is closed")
