"""Opens the session of an episode, and replaces a lost one by a new one in the same state; else the episode is void."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from numbers import Real
from typing import TypeVar

from xp.envs.base import (
    DeadlineExceeded,
    EnvFault,
    Message,
    MessageTaker,
    ModelMessage,
    ProtocolError,
    Session,
    StateScorer,
    ToolResult,
    ToolSpec,
    UnsafeOrigin,
    metrics_of,
)
from xp.envs.pictures import checked
from xp.envs.retry import backoff_s
from xp.episode.prompt import WAY_OUT, first_difference, session_messages
from xp.episode.tool_calls import ToolCall
from xp.errors import ExitCode, XpError
from xp.lib.text import valid_text

T = TypeVar("T")


def as_message(result: ToolResult) -> Message:
    """The text of a result with its pictures."""
    message = Message(role="tool", content=result.text)
    if result.pictures:
        message["pictures"] = list(result.pictures)
    return message


class Diverged(EnvFault):
    """The new session begins or answers differently from the lost one, so the episode cannot continue."""


class PromptDiffers(EnvFault):
    """The session has another prompt than the one that was prepared, which the model reads."""


Call = ToolCall | ModelMessage | str
"""One action on a session: a tool call, a whole message, or a plain message."""


def call_name(call: Call) -> str:
    if isinstance(call, ModelMessage):
        return "the model's message"
    if isinstance(call, ToolCall):
        return call.name
    return "the final answer"


def fault_text(fault: EnvFault) -> str:
    """A fault as a reason why an episode is void."""
    return valid_text(f"{type(fault).__name__}: {fault}")


class Attempt:
    """The session of an episode, with retries; raises EnvFault only.

    Args:
        open_session: opens a new session.
        retries: largest number of retries of the whole episode.
        system_prompt: system message before each session's own prompt.
        prepared: first messages of the dialogue, which every session must repeat. None means that they are the first
            session's.
        has_pictures: whether messages may have pictures.
    """

    def __init__(
        self,
        open_session: Callable[[], Session],
        retries: int,
        system_prompt: str | None,
        prepared: Sequence[Message] | None,
        *,
        has_pictures: bool,
    ) -> None:
        self._open_session = open_session
        self._has_pictures = has_pictures
        self._system_prompt = system_prompt
        self._is_live = prepared is None
        self.opening = prepared
        """First messages of the dialogue. None means that they are those of a session that is not open yet."""
        self.faults: list[tuple[str, str]] = []
        """Each fault, with the call in which it occurred."""
        self._retries_left = retries
        self._num_retries = 0
        self._session: Session | None = None
        self._done: list[tuple[Call, ToolResult]] = []

    def open(self, deadline: float) -> None:
        """Opens the session and has it list its tools, while the model generates the first turn that needs them."""
        self._persist(lambda session: session.tools(), deadline)

    def perform(self, call: Call, deadline: float) -> ToolResult:
        result = self._persist(lambda session: _perform(session, call), deadline, call_name(call))
        checked([as_message(result), *result.messages], is_on=self._has_pictures)
        self._done.append((call, result))
        return result

    def leave(self, deadline: float) -> ToolResult | None:
        """The score of the episode's final state. None means that the environment does not score states."""
        return self._persist(_leave, deadline, "the final state")

    def takes_messages(self) -> bool:
        return self._persist(lambda session: isinstance(session, MessageTaker))

    def takes_answer(self) -> bool:
        return self._persist(lambda session: session.takes_answer)

    def reads_thinking(self) -> bool:
        """True if the session takes the model's whole text as an answer, thinking included."""
        return self._persist(lambda session: getattr(session, "reads_thinking", False))

    def tools(self) -> tuple[ToolSpec, ...]:
        return self._persist(lambda session: session.tools())

    def close(self) -> None:
        session = self._session
        self._session = None
        if session is not None:
            with suppress(Exception):
                session.close()

    def _persist(
        self, act: Callable[[Session], T], deadline: float = math.inf, call: str = "opening"
    ) -> T:
        """Acts on the session; after a fault on a new one, while retries and time are left."""
        while True:
            if time.monotonic() > deadline:
                raise DeadlineExceeded("the episode took longer than its limit")
            try:
                return _as_fault(lambda: act(self._session or self._reopen()))
            except EnvFault as fault:
                self.faults.append((call, fault_text(fault)))
                if isinstance(fault, (UnsafeOrigin, Diverged, PromptDiffers)):
                    raise
                self.close()
                if self._retries_left <= 0:
                    raise
                self._retries_left -= 1
                self._num_retries += 1
                time.sleep(max(0.0, min(backoff_s(self._num_retries), deadline - time.monotonic())))

    def _reopen(self) -> Session:
        self._session = session = self._open_session()
        messages = session_messages(self._system_prompt, session)
        checked(messages, is_on=self._has_pictures)
        if self.opening is None:
            self.opening = messages
        elif difference := first_difference(self.opening, messages):
            if self._is_live:
                raise Diverged(
                    f"a fresh session has another prompt than the one that was lost: {difference}"
                )
            raise PromptDiffers(
                f"the environment's prompt is not the prepared one: {difference}; {WAY_OUT}"
            )
        for call, expected in self._done:
            result = _perform(session, call)
            if result != expected:
                raise Diverged(
                    f"a fresh session answered {call_name(call)} differently from the one that was lost"
                )
        return session


def _perform(session: Session, call: Call) -> ToolResult:
    if isinstance(call, ModelMessage):
        assert isinstance(session, MessageTaker)
        return _valid(session.take(call))
    if isinstance(call, ToolCall):
        return _valid(session.call(call.name, call.arguments))
    return _valid(session.answer(call))


def _leave(session: Session) -> ToolResult | None:
    if isinstance(session, StateScorer):
        return _valid(session.leave())
    return None


def _valid(result: ToolResult) -> ToolResult:
    """The result with a text that can be encoded; a provider of the user's may give anything.

    Raises:
        ProtocolError: the reward is not a number, or `finished` not a truth value.
    """
    if not (result.reward is None or isinstance(result.reward, Real)):
        raise ProtocolError(f"the reward is {result.reward!r:.60}, not a number or None")
    if not hasattr(
        type(result.finished), "__bool__"
    ):  # A text such as "false" would count as true.
        raise ProtocolError(f"finished is {result.finished!r:.60}, not True or False")
    return replace(result, text=valid_text(result.text), metrics=metrics_of(result.metrics))


def _as_fault(act: Callable[[], T]) -> T:
    """Converts any exception of a foreign provider to an EnvFault."""
    try:
        return act()
    except EnvFault:
        raise
    except Exception as error:
        if isinstance(error, XpError) and error.code is ExitCode.LIMIT:
            raise  # A limit of the user's ends the run; every further episode would be void.
        raise EnvFault(
            f"the environment's client raised {type(error).__name__}: {error}"
        ) from error
