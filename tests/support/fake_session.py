"""A scripted session without a server, and the smallest legal rules for an episode."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from tests.support.sections import environment, replace
from xp.contrib.contracts.jobs import DEADLINE_S
from xp.envs.base import EnvFault, Message, ModelMessage, Task, ToolResult, ToolSpec
from xp.envs.config import EnvConfig
from xp.episode.episode import Episode

TASK = Task("fake", "train", 0)
RULES = environment(
    name="fake",
    provider="tests.support.fake_session:FakeSession",
    max_turns=5,
    limits={
        "create_timeout_s": DEADLINE_S,
        "call_timeout_s": DEADLINE_S,
        "episode_timeout_s": 4 * DEADLINE_S,
        "max_sessions": 64,
        "retries_per_episode": 1,
        "memory_gb": None,
    },
)
LIMITS = RULES.limits


def with_limits(rules: EnvConfig, **changes: Any) -> EnvConfig:
    return replace(rules, limits=replace(rules.limits, **changes))


def call(name: str, **arguments: Any) -> str:
    import json

    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


class FakeSession:
    """Answers by a function of the tool's name and the calls before it; raises what the function returns to raise."""

    def __init__(
        self,
        respond: Callable[[str, int], ToolResult | Exception],
        grade: Callable[[str], ToolResult] | None = None,
    ) -> None:
        self._respond = respond
        self._grade = grade
        self.calls: list[tuple[str, Mapping[str, Any]]] = []
        self.answers: list[str] = []
        self.num_closed = 0

    def prompt(self) -> list[Message]:
        return [Message(role="user", content="play")]

    def tools(self) -> tuple[ToolSpec, ...]:
        return (ToolSpec("move", "Move.", {}),)

    @property
    def takes_answer(self) -> bool:
        return self._grade is not None

    def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        found = self._respond(name, len(self.calls))
        self.calls.append((name, arguments))
        if isinstance(found, Exception):
            raise found
        return found

    def answer(self, text: str) -> ToolResult:
        self.answers.append(text)
        assert self._grade is not None
        return self._grade(text)

    def close(self) -> None:
        self.num_closed += 1


class TakingSession(FakeSession):
    """Takes whole messages: answers each call in a message of its own, and a text by one of the user's."""

    takes_answer = True

    def take(self, message: ModelMessage) -> ToolResult:
        called = message.message.get("tool_calls", [])
        results = [
            self.call(one["function"]["name"], one["function"]["arguments"]) for one in called
        ]
        read: list[Message] = [
            Message(
                role="tool",
                content=result.text,
                name=one["function"]["name"],
                tool_call_id=one["id"],
            )
            for one, result in zip(called, results, strict=True)
        ]
        if not called or message.message["content"]:
            read.append(Message(role="user", content=f"heard {message.message['content']!r}"))
        if any(one.finished for one in results):
            return ToolResult("", 1.0, finished=True)
        return ToolResult("", messages=tuple(read))


class OneAtATime:
    """Opens sessions of a server that holds one; others wait for its end."""

    def __init__(self, make: Callable[[], FakeSession]) -> None:
        self._make = make
        self._free = threading.Semaphore(1)

    def __call__(self) -> FakeSession:
        if not self._free.acquire(timeout=DEADLINE_S):
            raise EnvFault("no session was free in time")
        session = self._make()
        close = session.close

        def closed() -> None:
            if not session.num_closed:
                self._free.release()
            close()

        session.close = closed  # type: ignore[method-assign]
        return session


class Sessions:
    """Opens the given sessions one after another, or raises the given faults."""

    def __init__(self, *script: FakeSession | EnvFault) -> None:
        self.script = list(script)
        self.opened: list[FakeSession] = []

    def __call__(self) -> FakeSession:
        found = self.script.pop(0)
        if isinstance(found, EnvFault):
            raise found
        self.opened.append(found)
        return found


def steady(name: str, done_before: int) -> ToolResult:
    """`move` is worth 0.5 and says how many calls came before; `win` ends the game with 1.0."""
    if name == "win":
        return ToolResult("won", 1.0, True)
    if name == "look":
        return ToolResult("a room")
    if name == "unknown":
        return ToolResult("'unknown' is not a valid tool", is_call_error=True)
    return ToolResult(f"moved after {done_before}", 0.5)


def episode_of(session: FakeSession, rules: EnvConfig = RULES) -> Episode:
    return Episode(TASK, lambda: session, rules)
