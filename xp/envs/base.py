"""The interface of an environment to the rest of xp: a Provider of tasks and sessions, and the types of its failures.

A provider is independent of backends and launchers. `provider: openreward` in the spec names the module
`xp.envs.openreward`; `provider: my_pkg.envs:MyProvider` names exactly that class.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, Final, NotRequired, Protocol, TypedDict, runtime_checkable


class Picture(TypedDict):
    """A picture of a message, whose bytes lie in a store by their digest (xp.envs.picture_store)."""

    sha256: str
    media_type: str
    """`image/png`."""
    width: int
    """In pixels, as height."""
    height: int
    size: int
    """Number of bytes."""


PICTURE_MARK: Final = "\ufffc"
"""Stands in the content of a message for each of its pictures, in their order: Unicode's mark of an object in a text."""


class Message(TypedDict):
    """One chat message, in the form of chat templates (`xp.envs.messages` makes it of other forms)."""

    role: str
    content: str
    name: NotRequired[str]
    """Name of the tool whose result it is."""
    tool_call_id: NotRequired[str]
    """Id of the call whose result it is."""
    tool_calls: NotRequired[list[dict[str, Any]]]
    """Calls of an assistant's message: id, type and function, whose arguments are an object."""
    pictures: NotRequired[list[Picture]]
    """Its pictures, one for each PICTURE_MARK of the content; without this key the mark is a character like any other."""


@dataclass(frozen=True)
class ToolSpec:
    """Declaration of an environment's tool."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    """JSON schema of the arguments; its type is object."""


@dataclass(frozen=True)
class Task:
    """One task of an environment, identified so that any process can open it again."""

    env: str
    """Name of its member of the mixture."""
    split: str
    index: int
    """Position within the split, from 0."""
    spec: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    """The environment's own description; it may include the answer, so it is never in a prompt or a dataset column."""

    @property
    def id(self) -> str:
        return f"{self.env}/{self.split}/{self.index}"


@dataclass(frozen=True)
class ToolResult:
    """Result of a tool call."""

    text: str
    """Text for the model, with a PICTURE_MARK for each of the pictures."""
    reward: float | None = None
    """Reward of this step. None means that the environment did not score it."""
    finished: bool = False
    is_call_error: bool = False
    """True if the model's call was wrong (unknown tool, bad arguments); `text` is the message for the model."""
    awaits_reply: bool = False
    """True if a plain message was answered and the conversation continues; only in sessions with plain messages."""
    judges: Mapping[str, float] = field(default_factory=dict)
    """Usage of judge models: `prompt_tokens`, `completion_tokens`, and `cost_usd` if all prices are known."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Further numbers of the scorer, beside the reward."""
    messages: tuple[Message, ...] = ()
    """The environment's messages, of a MessageTaker; others have `text`."""
    is_truncated: bool = False
    """True if a limit of the environment's own ended the episode; `finished` is then true as well."""
    pictures: tuple[Picture, ...] = ()
    """Pictures of the text."""


NEW_PROMPT: Final = -1
"""In place of the number of a turn: the messages follow none."""


@dataclass(frozen=True)
class TakenResult(ToolResult):
    """Result of a MessageTaker, whose dialogue may go on after an earlier turn, or with another prompt."""

    follows: int | None = None
    """Number of the turn, from 0, that `messages` come after, or NEW_PROMPT; None: the last one."""
    undelivered: tuple[int, ...] = ()
    """At the end of the episode: turns that the program never got, which are not trained on."""


def metrics_of(entries: Mapping[Any, Any]) -> dict[str, float]:
    """The entries of a scorer's mapping that can be metrics: a name of one line, and a finite number."""
    return {
        str(name): float(value)
        for name, value in entries.items()
        if str(name).strip()
        and str(name).isprintable()
        and isinstance(value, Real)
        and math.isfinite(value)
    }


class Session(Protocol):
    """One open attempt at one task. Methods block, are called from one thread at a time, and raise EnvFault only."""

    def prompt(self) -> list[Message]:
        """The environment's first messages."""

    def tools(self) -> tuple[ToolSpec, ...]: ...

    @property
    def takes_answer(self) -> bool:
        """Returns whether plain messages go to `answer`: the final one, or each one of a conversation."""

    def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult: ...

    def answer(self, text: str) -> ToolResult: ...

    def close(self) -> None:
        """Ends the session on the server; idempotent, never raises."""


@dataclass(frozen=True)
class ModelMessage:
    """A whole message of the model."""

    message: Message
    is_cut: bool = False
    """True if a token limit ended it."""
    reasoning: str = ""
    """Its text of thinking, which is not part of the message."""


PROMPT_LENGTH: ContextVar[Callable[[Sequence[Message], str], int] | None] = ContextVar(
    "PROMPT_LENGTH", default=None
)
"""Counts the policy's tokens of a prompt with a JSON list of tools, for a session that opens in this context."""


@runtime_checkable
class MessageTaker(Protocol):
    """A session that takes whole messages of the model, in place of single calls and answers."""

    def take(self, message: ModelMessage) -> ToolResult:
        """The environment's next messages, or the end of the episode. Raises EnvFault."""


@runtime_checkable
class StateScorer(Protocol):
    """A session whose reward depends on its final state, even if the model never ended the episode."""

    def leave(self) -> ToolResult:
        """Scores the final state when the limit of turns or tokens is reached; called once. Raises EnvFault."""


class Provider(Protocol):
    """Source of an environment's tasks and sessions. Thread-safe; constructed once per process."""

    def version(self) -> str:
        """Identifier of the environment's content: a version, a digest of its source, or an empty string."""

    def splits(self) -> tuple[str, ...]: ...

    def num_tasks(self, split: str) -> int: ...

    def tasks(self, split: str, indices: Sequence[int]) -> list[Task]:
        """Tasks with their specs, in the order of `indices`; one bulk request if the protocol has one."""

    def open(self, task: Task) -> Session:
        """Opens a session; raises EnvFault."""

    def close(self) -> None: ...


@runtime_checkable
class Lister(Protocol):
    """A provider whose environment may list all tasks of a split in one call."""

    def listed(self, split: str) -> list[Task] | None:
        """All tasks with their specs, in order. None means that the environment only counts its tasks. Raises
        EnvFault."""


@runtime_checkable
class GroupScorer(Protocol):
    """A provider whose environment may compare the episodes of a group."""

    def score_group(self, task: Task, dialogues: Sequence[Sequence[Message]]) -> list[float]:
        """One score for each dialogue, in their order; opens a session of the task for it. Raises EnvFault.

        Args:
            dialogues: each episode's messages, with its executed calls as `tool_calls` of the assistant's messages.
        """


@runtime_checkable
class Describer(Protocol):
    """A provider that describes tasks with fewer sessions than one for each."""

    def describe(self, task: Task) -> tuple[list[Message], tuple[ToolSpec, ...]]:
        """Prompt and tools of a task, for its preparation. Raises EnvFault."""


@runtime_checkable
class PictureNamer(Protocol):
    """A provider whose tasks' prompts may have pictures from files beside its rows."""

    def picture_paths(self, task: Task) -> list[str]:
        """Paths of the pictures that the prompt of an existing task is made of, as they are written. Raises EnvFault."""


@runtime_checkable
class Remover(Protocol):
    """A provider whose sessions may outlive a killed process, at a service."""

    def remove_left(self) -> list[str]:
        """Removes what killed processes of this machine left; returns a line for each, and for what it cannot remove.

        Raises EnvFault and XpError.
        """


@runtime_checkable
class AnswerChecker(Protocol):
    """A provider that may know right answers, and a reader of them."""

    def check_answers(self) -> str | None:
        """Scores the right answers themselves; returns a line about it, or None if the scorer is not xp's own.

        Raises:
            XpError: there is none in a task, or one that does not get 1.
        """


class EnvFault(Exception):
    """Failure of infrastructure, not of the model: the episode is void and is never scored 0."""

    retry_after_s: float | None = None
    """Seconds to wait, from the server's Retry-After. None means that it is not given."""


class EnvUnavailable(EnvFault):
    """The server refused, was unreachable or busy: the request did not execute."""


class SessionLost(EnvFault):
    """The session no longer exists on the server."""


class DeadlineExceeded(EnvFault):
    """A call, a creation or an episode exceeded its time limit; it may have executed."""


class ResponseLost(EnvFault):
    """The connection broke after the request was sent; the request may have executed, so it is not repeated."""


class ProtocolError(EnvFault):
    """The server's reply violates the protocol (bad JSON, a reward that is not finite, ...)."""


class NotOffered(ProtocolError):
    """The server does not support this request (a 4xx), or its answer exceeds the largest size."""


class ToolCrashed(EnvFault):
    """The environment's own tool raised; the session is dead."""


class UnsafeOrigin(EnvFault):
    """A secret would have gone to an origin that is not allowed, or across a redirect."""
