"""The episode of another package as a session: its requests are the prompts, and only its own score is a reward."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from xp.contrib.conversation import ConversationSession, ModelRequest
from xp.envs.base import (
    DeadlineExceeded,
    ProtocolError,
    SessionLost,
    ToolResult,
    ToolSpec,
)

Ask = Callable[..., Awaitable[dict[str, Any]]]
USER = {"role": "user", "content": "Where?"}
SYSTEM = {"role": "system", "content": "Be brief."}
SCHEMA = {"type": "object", "properties": {"at": {"type": "string"}}}
LOOK: dict[str, Any] = {"function": {"name": "look", "description": "Looks.", "parameters": SCHEMA}}


class Package(ConversationSession):
    """A package whose episode is a coroutine that asks the model."""

    package = "pack"

    def __init__(self, play: Callable[[Ask], Awaitable[float]], limit_s: float = 50.0) -> None:
        super().__init__(limit_s)
        self._play = play
        self.num_stopped = 0

    def _start(self, questions: asyncio.Queue[ModelRequest]) -> asyncio.Future[Any]:
        async def ask(
            *messages: dict[str, Any], trace: str = "a", tools: tuple[Any, ...] = (LOOK,)
        ) -> dict[str, Any]:
            reply: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
            await questions.put(ModelRequest(trace, list(messages), list(tools), reply))
            return await reply

        return asyncio.ensure_future(self._play(ask))

    def _end(self, episode: Any) -> ToolResult:
        return ToolResult("over", episode, finished=True)

    async def _stop(self) -> None:
        self.num_stopped += 1
        if self._episode is not None:
            self._episode.cancel()


def begun(play: Callable[[Ask], Awaitable[float]], limit_s: float = 50.0) -> Package:
    session = Package(play, limit_s)
    session.begin(50.0)
    return session


def test_an_episode_is_played_by_calls_and_answers() -> None:
    said: list[dict[str, Any]] = []

    async def play(ask: Ask) -> float:
        history: list[dict[str, Any]] = [{"role": "system", "content": None}, USER]
        for replies in (
            [{"role": "tool", "content": "a hall"}],
            [{"role": "tool", "content": "b"}, {"role": "user", "content": "c"}],
            [{"role": "user", "content": "d"}, {"role": "user", "content": "e"}],
        ):
            said.append(await ask(*history))
            # A package may leave an empty value out, and write it in the next request.
            history = [{"content": None, **message} for message in history]
            history += [said[-1], *replies]
        said.append(await ask(*history))
        return 0.5

    session = begun(play)
    assert session.prompt() == [{"role": "system", "content": ""}, USER]
    assert session.tools() == (ToolSpec("look", "Looks.", SCHEMA),)
    wrong = session.call("lok", {})
    assert (wrong.text, wrong.is_call_error) == (
        "Error: there is no tool 'lok'; there are: look",
        True,
    )
    assert session.call("look", {"at": "é"}) == ToolResult("a hall")
    assert session.call("look", {}) == ToolResult("b\n\nc")
    assert session.answer("Ada") == ToolResult("d\n\ne", awaits_reply=True)
    assert session.answer("Bo") == ToolResult("over", 0.5, finished=True)
    function = {"name": "look", "arguments": '{"at": "\\u00e9"}'}
    call = {"id": "call_1", "type": "function", "function": function}
    assert said[0] == {"role": "assistant", "content": None, "tool_calls": [call]}
    assert said[1]["tool_calls"][0]["id"] == "call_2"
    assert said[2:] == [{"role": "assistant", "content": text} for text in ("Ada", "Bo")]
    with pytest.raises(SessionLost, match="the episode is over"):
        session.answer("again")
    session.close()
    assert session.num_stopped == 1


SAID = {"role": "assistant", "content": "Ada"}


@pytest.mark.parametrize(
    ("messages", "trace", "text"),
    [
        ([USER, SAID, USER], "b", "a second seat"),
        ([USER, SAID], "a", "rewrote the conversation"),
        ([USER, USER, {"role": "user", "content": [{"image": 1}]}], "a", "a text as content"),
        ([USER], "a", "rewrote the conversation"),
        ([SYSTEM, SAID, USER], "a", "rewrote the conversation"),
    ],
)
def test_a_conversation_that_no_tokens_can_follow_is_a_fault(
    messages: list[dict[str, Any]], trace: str, text: str
) -> None:
    async def play(ask: Ask) -> float:
        await ask(USER)
        await ask(*messages, trace=trace)
        return 1.0

    session = begun(play)
    with pytest.raises(ProtocolError, match=text):
        session.answer("Ada")
    session.close()


def test_tools_that_change_within_a_conversation_are_a_fault() -> None:
    async def play(ask: Ask) -> float:
        await ask(USER)
        await ask(USER, {"role": "assistant", "content": "Ada"}, USER, tools=())
        return 1.0

    session = begun(play)
    with pytest.raises(ProtocolError, match="changed its tools"):
        session.answer("Ada")
    session.close()


def test_an_episode_that_takes_too_long_is_a_fault_and_is_stopped() -> None:
    async def slow(ask: Ask) -> float:
        await ask(USER)
        await asyncio.sleep(60)
        return 1.0

    session = begun(slow, limit_s=0.05)
    with pytest.raises(DeadlineExceeded, match=r"pack's episode took longer than 0\.05 s"):
        session.answer("Ada")
    session.close()
    assert session.num_stopped > 0
