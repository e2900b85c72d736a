"""A session in which another package runs the episode: its requests to the model become the trained model's prompts."""

from __future__ import annotations

import asyncio
import json
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from xp.envs.base import (
    DeadlineExceeded,
    Message,
    ProtocolError,
    SessionLost,
    ToolResult,
    ToolSpec,
)
from xp.envs.loop import run
from xp.envs.messages import ReadPicture, chat_call, chat_messages
from xp.envs.pictures import joined, parts_of, separated

T = TypeVar("T")

SLACK_S: Final = 5.0
CLOSE_S: Final = 30.0


@dataclass(frozen=True)
class ModelRequest:
    """Request of a package's episode for the model's next message."""

    trace: str
    """Name of the conversation."""
    messages: list[Any]
    """The whole conversation, in the form of chat completions."""
    tools: list[dict[str, Any]]
    """`{"function": {...}}` of chat completions."""
    reply: asyncio.Future[Any]
    """Future of the model's message, in the form that the session's subclass gives it."""
    takes_one_call: bool = False
    """Whether the package takes at most one call of a message."""


class ConversationSession(ABC):
    """See xp.envs.base.Session. Subclasses start the episode and read its score.

    Args:
        limit_s: time limit of a call in seconds, until the episode's next request or its score.
    """

    takes_answer = True
    package: str
    read_picture: ReadPicture | None = None
    """Reads the pictures of the episode's messages. None means that they are refused."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._request: ModelRequest | None = None
        self._num_calls = 0
        self._episode: asyncio.Future[Any] | None = None

    @abstractmethod
    def _start(self, questions: asyncio.Queue[ModelRequest]) -> asyncio.Future[Any]:
        """Begins the episode on the loop's thread; its requests go to the queue, its result to the future."""

    @abstractmethod
    def _end(self, episode: Any) -> ToolResult:
        """Result of a finished episode; raises EnvFault if anything failed."""

    @abstractmethod
    async def _stop(self) -> None:
        """Stops an episode that may still run."""

    def begin(self, limit_s: float) -> None:
        """Starts the episode and waits for its first request; raises EnvFault."""
        try:
            episode = run(self._within(self._begin(), limit_s), limit_s + SLACK_S)
            if episode is not None:
                self._end(episode)
                raise ProtocolError("the episode was over before it asked the model anything")
            assert self._request is not None
            self._opening = messages_of(self._request.messages, self.read_picture)
            self._tools = tuple(tool_of(schema) for schema in self._request.tools)
        except BaseException:
            self.close()  # No caller has the session yet.
            raise

    def prompt(self) -> list[Message]:
        return self._opening

    def tools(self) -> tuple[ToolSpec, ...]:
        return self._tools

    def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        if name not in {tool.name for tool in self._tools}:
            known = ", ".join(tool.name for tool in self._tools) or "none"
            return ToolResult(
                f"Error: there is no tool {name!r}; there are: {known}", is_call_error=True
            )
        self._num_calls += 1
        call = chat_call(f"call_{self._num_calls}", name, json.dumps(dict(arguments)))
        return self._say({"role": "assistant", "content": None, "tool_calls": [call]})

    def answer(self, text: str) -> ToolResult:
        return self._say({"role": "assistant", "content": text})

    def close(self) -> None:
        with suppress(Exception):
            run(self._stop(), CLOSE_S)

    def _say(self, message: dict[str, Any]) -> ToolResult:
        """Answers the episode's request; returns its next messages or its score."""
        before, episode = self._exchange(message)
        if self._request is None:
            return self._end(episode)
        return self._observed(before, self._request)

    def _exchange(self, message: Any) -> tuple[ModelRequest, Any]:
        """Answers the episode's request; returns that request, and the finished episode if no other one followed."""
        before = self._request
        if before is None:
            raise SessionLost("the episode is over")
        return before, run(
            self._within(self._turn(before, message), self._limit_s), self._limit_s + SLACK_S
        )

    async def _within(self, work: Coroutine[Any, Any, T], limit_s: float) -> T:
        try:
            return await asyncio.wait_for(work, limit_s)
        except TimeoutError:
            raise DeadlineExceeded(
                f"{self.package}'s episode took longer than {limit_s:g} s"
            ) from None

    async def _begin(self) -> Any:
        self._questions: asyncio.Queue[ModelRequest] = asyncio.Queue()
        self._episode = self._start(self._questions)
        return await self._next()

    async def _turn(self, before: ModelRequest, message: Any) -> Any:
        self._request = None
        before.reply.set_result(message)
        return await self._next()

    def _observed(self, before: ModelRequest, request: ModelRequest) -> ToolResult:
        """Messages after the model's own, in the model's format."""
        if request.trace != before.trace:
            raise ProtocolError(
                "a second seat asks for the trained model: give it an endpoint by options.seats"
            )
        num_before = len(before.messages)
        messages = request.messages[num_before + 1 :]
        is_longer = messages and _read(request.messages[:num_before]) == _read(before.messages)
        if not is_longer or any(message["role"] == "assistant" for message in messages):
            raise ProtocolError(
                "the environment rewrote the conversation, which no trainer's tokens can follow"
            )
        if request.tools != before.tools:
            raise ProtocolError(
                "the environment changed its tools within a conversation, which no trainer's prompt can follow"
            )
        observed = map(parts_of, messages_of(messages, self.read_picture))
        text, pictures = joined(separated(observed, "\n\n"))
        is_users = all(message["role"] == "user" for message in messages)
        return ToolResult(text, awaits_reply=is_users, pictures=tuple(pictures))

    async def _next(self) -> Any:
        """Waits for the finished episode; returns None if there is a new request, which is then in `_request`."""
        assert self._episode is not None
        question = asyncio.ensure_future(self._questions.get())
        try:
            await asyncio.wait({question, self._episode}, return_when=asyncio.FIRST_COMPLETED)
            if question.done():
                self._request = question.result()
                return None
            return self._episode.result()
        finally:
            question.cancel()


def _read(messages: Sequence[Mapping[str, Any]]) -> list[list[Any]]:
    """What a chat template reads of messages; a package may write an empty value in one request alone."""
    keys = ("role", "content", "tool_calls")
    return [[message.get(key) or None for key in keys] for message in messages]


def messages_of(
    messages: Sequence[Mapping[str, Any]], read: ReadPicture | None = None
) -> list[Message]:
    """The messages for a chat template; raises ProtocolError for content other than text and pictures.

    Args:
        messages: in the form of chat completions.
        read: reads a picture. None means that pictures are refused.
    """
    return chat_messages(
        [{**message, "content": message.get("content") or ""} for message in messages], read
    )


def tool_of(schema: Mapping[str, Any]) -> ToolSpec:
    function = schema["function"]
    return ToolSpec(
        function["name"],
        function.get("description", ""),
        function.get("parameters", {"type": "object"}),
    )
