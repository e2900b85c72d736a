"""The episode of another package as a session: its requests are the prompts, and only its own score is a reward."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from xp.envs.base import (
    DeadlineExceeded,
    EnvFault,
    ProtocolError,
    SessionLost,
    ToolResult,
    ToolSpec,
)
from xp.envs.conversation import ConversationSession, ModelRequest
from xp.envs.loop import run

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
        answers = (
            [{"role": "tool", "content": "a hall"}],
            [{"role": "tool", "content": "b"}, {"role": "user", "content": "c"}],
            [{"role": "user", "content": "d"}, {"role": "user", "content": "e"}],
        )
        for more in answers:
            said.append(await ask(*history))
            # A package may leave an empty value out, and write it in the next request.
            history = [{"content": None, **message} for message in history]
            history += [said[-1], *more]
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
    results = [
        session.call("look", {"at": "é"}),
        session.call("look", {}),
        session.answer("Ada"),
        session.answer("Bo"),
    ]
    assert [(one.text, one.awaits_reply, one.finished, one.reward) for one in results] == [
        ("a hall", False, False, None),
        ("b\n\nc", False, False, None),
        ("d\n\ne", True, False, None),
        ("over", False, True, 0.5),
    ]
    call = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "look", "arguments": '{"at": "\\u00e9"}'},
    }
    assert said[0] == {"role": "assistant", "content": None, "tool_calls": [call]}
    assert said[1]["tool_calls"][0]["id"] == "call_2"
    assert said[2:] == [{"role": "assistant", "content": text} for text in ("Ada", "Bo")]
    with pytest.raises(SessionLost, match="the episode is over"):
        session.answer("again")
    session.close()
    assert session.num_stopped == 1


@pytest.mark.parametrize(
    ("messages", "trace", "fault", "text"),
    [
        (
            (USER, {"role": "assistant", "content": "Ada"}, USER),
            "b",
            ProtocolError,
            "a second seat",
        ),
        (
            (USER, {"role": "assistant", "content": "Ada"}),
            "a",
            ProtocolError,
            "rewrote the conversation",
        ),
        ((USER,), "a", ProtocolError, "rewrote the conversation"),
        (
            (USER, USER, {"role": "assistant", "content": "x"}),
            "a",
            ProtocolError,
            "rewrote the conversation",
        ),
        (
            (SYSTEM, {"role": "assistant", "content": "Ada"}, USER),
            "a",
            ProtocolError,
            "rewrote the conversation",
        ),
        (
            (USER, USER, {"role": "user", "content": [{"image": 1}]}),
            "a",
            ProtocolError,
            "a text as content",
        ),
    ],
)
def test_a_conversation_that_no_tokens_can_follow_is_a_fault(
    messages: tuple[dict[str, Any], ...], trace: str, fault: type[EnvFault], text: str
) -> None:
    async def play(ask: Ask) -> float:
        await ask(USER)
        await ask(*messages, trace=trace)
        return 1.0

    session = begun(play)
    with pytest.raises(fault, match=text):
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


def test_an_episode_that_asks_nothing_or_too_late_is_a_fault_and_is_stopped() -> None:
    async def silent(_: Ask) -> float:
        return 1.0

    async def slow(ask: Ask) -> float:
        await ask(USER, tools=())
        await asyncio.sleep(60)
        return 1.0

    session = Package(silent)
    with pytest.raises(ProtocolError, match="over before it asked the model"):
        session.begin(50.0)
    assert session.num_stopped == 1
    late = begun(slow, limit_s=0.05)
    assert late.num_stopped == 0
    assert "there are: none" in late.call("look", {}).text
    with pytest.raises(DeadlineExceeded, match=r"pack's episode took longer than 0\.05 s"):
        late.answer("Ada")
    late.close()

    async def waiting() -> list[str]:
        await asyncio.sleep(0.01)
        names = [repr(task.get_coro()) for task in asyncio.all_tasks()]
        return [name for name in names if "Queue.get" in name]

    # Python would print each as an error later.
    assert run(waiting(), 50.0) == []
