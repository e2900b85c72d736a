"""One of verifiers' episodes as a session: what it asks the model is what the model reads, and the other way round."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from typing import Any, Final, TypeVar

from xp.envs.base import (
    DeadlineExceeded,
    Message,
    ProtocolError,
    SessionLost,
    ToolCrashed,
    ToolResult,
    ToolSpec,
)
from xp.envs.loop import run
from xp.envs.packages.verifiers_model import ModelEndpoint, ModelRequest

T = TypeVar("T")

SLACK_S: Final = 5.0
CLOSE_S: Final = 30.0


class VerifiersSession:
    """See xp.envs.base.Session.

    Args:
        endpoint: of the model.
        seat: name of the seat that the model has.
        limit_s: of a call: until the episode asks again, or is over and scored; seconds.
    """

    takes_answer = True

    def __init__(self, endpoint: ModelEndpoint, seat: str, limit_s: float) -> None:
        self._endpoint, self._seat, self._limit_s = endpoint, seat, limit_s
        self._traces: list[Any] = []
        self._asked: ModelRequest | None = None
        self._num_calls = 0

    def begin(self, environment: Any, task: Any, context: Any, limit_s: float) -> None:
        """Start the episode and wait for its first question; raises EnvFault."""
        episode = run(self._within(self._begin(environment, task, context), limit_s), limit_s + SLACK_S)
        if episode is not None:
            self._reward(episode)
            raise ProtocolError("the episode was over before it asked the model anything")
        assert self._asked is not None
        self._opening = [_message(message) for message in self._asked.messages]
        self._tools = tuple(_tool(schema) for schema in self._asked.tools)

    def prompt(self) -> list[Message]:
        return self._opening

    def tools(self) -> tuple[ToolSpec, ...]:
        return self._tools

    def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        if name not in {tool.name for tool in self._tools}:
            known = ", ".join(tool.name for tool in self._tools) or "none"
            return ToolResult(f"Error: there is no tool {name!r}; there are: {known}", is_call_error=True)
        self._num_calls += 1
        function = {"name": name, "arguments": json.dumps(dict(arguments))}
        call = {"id": f"call_{self._num_calls}", "type": "function", "function": function}
        return self._say({"role": "assistant", "content": None, "tool_calls": [call]})

    def answer(self, text: str) -> ToolResult:
        return self._say({"role": "assistant", "content": text})

    def close(self) -> None:
        with suppress(Exception):
            run(self._close(), CLOSE_S)

    def _say(self, message: dict[str, Any]) -> ToolResult:
        return run(self._within(self._turn(message), self._limit_s), self._limit_s + SLACK_S)

    async def _within(self, work: Coroutine[Any, Any, T], limit_s: float) -> T:
        try:
            return await asyncio.wait_for(work, limit_s)
        except TimeoutError:
            raise DeadlineExceeded(f"verifiers' episode took longer than {limit_s:g} s") from None

    async def _begin(self, environment: Any, task: Any, context: Any) -> Any:
        self._questions: asyncio.Queue[ModelRequest] = asyncio.Queue()
        self._episode = asyncio.ensure_future(environment.run_episode(task, context, on_trace=self._minted))
        return await self._next()

    def _minted(self, trace: Any) -> None:
        """Called by verifiers for each seat that begins to play."""
        self._traces.append(trace)
        self._endpoint.expect(trace.id, self._questions)

    async def _turn(self, message: dict[str, Any]) -> ToolResult:
        if self._asked is None:
            raise SessionLost("the episode is over")
        before, self._asked = self._asked, None
        before.reply.set_result(message)
        episode = await self._next()
        if episode is not None:
            return ToolResult("", self._reward(episode), finished=True)
        asked = self._asked
        assert asked is not None
        if asked.trace != before.trace:
            raise ProtocolError("a second seat asks for the trained model: give it an endpoint by options.seats")
        said = asked.messages[len(before.messages) + 1 :]
        if not said or any(one["role"] == "assistant" for one in said):
            raise ProtocolError("the environment rewrote the conversation, which no trainer's tokens can follow")
        text = "\n\n".join(_message(one)["content"] for one in said)
        return ToolResult(text, awaits_reply=all(one["role"] == "user" for one in said))

    async def _next(self) -> Any:
        """The finished episode; None: it asks for a message, which is then in `_asked`."""
        question = asyncio.ensure_future(self._questions.get())
        await asyncio.wait({question, self._episode}, return_when=asyncio.FIRST_COMPLETED)
        if question.done():
            self._asked = question.result()
            return None
        question.cancel()
        return self._episode.result()

    def _reward(self, episode: Any) -> float:
        """Reward of the model's seat: the weighted sum of its rewards. Raises EnvFault if anything failed."""
        errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
        if not episode.ok:
            reasons = "; ".join(f"{error.type}: {error.message}" for error in errors) or "it was not completed"
            raise ToolCrashed(f"verifiers' episode failed: {reasons}")
        played = [trace for trace in episode.traces if trace.agent.name == self._seat]
        if len(played) != 1:
            raise ProtocolError(f"the seat {self._seat} played {len(played)} times in one episode; xp trains one")
        if unscored := [name for name, reward in played[0].rewards.items() if reward is None]:
            raise ToolCrashed(f"verifiers scored no {', '.join(unscored)}")
        return float(played[0].reward)

    async def _close(self) -> None:
        for trace in self._traces:
            self._endpoint.forget(trace.id)
        self._episode.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await self._episode


def _message(message: Mapping[str, Any]) -> Message:
    """A message that a chat template takes; raises ProtocolError for what is no text."""
    content = message.get("content")
    if isinstance(content, list):
        if strange := [part.get("type") for part in content if part.get("type") != "text"]:
            raise ProtocolError(f"a message with {strange[0]}: the trained model reads text alone")
        content = "\n".join(part["text"] for part in content)
    return Message(role=message["role"], content=content or "")


def _tool(schema: Mapping[str, Any]) -> ToolSpec:
    function = schema["function"]
    return ToolSpec(function["name"], function.get("description", ""), function.get("parameters", {"type": "object"}))
