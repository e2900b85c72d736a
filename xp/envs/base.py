"""The interface of an environment to the rest of xp: a Provider of tasks and sessions, and the types of its failures.

A provider never sees a backend or a launcher. `provider: openreward` in the spec names the module `xp.envs.openreward`;
`provider: my_pkg.envs:MyProvider` names exactly that class.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypedDict, runtime_checkable

MOST_TASKS: Final = 2**53
"""Tasks that a split may say it has: the whole numbers that every JSON reader keeps exact end here."""


class Message(TypedDict):
    """One chat message as a chat template takes it."""

    role: str
    content: str


@dataclass(frozen=True)
class ToolSpec:
    """A tool as the environment declares it."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    """JSON schema of the arguments (an object schema)."""


@dataclass(frozen=True)
class Task:
    """One problem of an environment, named so that any process can open it again."""

    env: str
    """Name of the member of the mixture that it belongs to."""
    split: str
    index: int
    """Position within the split, from 0."""
    spec: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    """The environment's own description; it may hold the answer, so it never reaches a prompt or a dataset column."""

    @property
    def id(self) -> str:
        return f"{self.env}/{self.split}/{self.index}"


@dataclass(frozen=True)
class ToolResult:
    """Result of a tool call."""

    text: str
    reward: float | None = None
    """None: the environment did not score this step."""
    finished: bool = False
    is_call_error: bool = False
    """The call itself was wrong (unknown tool, bad arguments): the model's fault, shown to it as `text`."""
    awaits_reply: bool = False
    """A plain message was answered, and the conversation goes on: only where a session takes plain messages."""
    judges: Mapping[str, float] = field(default_factory=dict)
    """Usage of judge models: `prompt_tokens`, `completion_tokens`, and `cost_usd` where all prices are known."""


class Session(Protocol):
    """One live attempt at one task. Methods block, are called from one thread at a time, and raise EnvFault only."""

    def prompt(self) -> list[Message]:
        """The environment's opening messages."""

    def tools(self) -> tuple[ToolSpec, ...]: ...

    @property
    def takes_answer(self) -> bool:
        """Returns whether a plain message is passed to `answer`: the final one, or each one of a conversation."""

    def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult: ...

    def answer(self, text: str) -> ToolResult: ...

    def close(self) -> None:
        """End the session on the server; idempotent, never raises."""


@runtime_checkable
class StateScorer(Protocol):
    """A session whose reward is of the state that it is left in, also if the model never said that it is done."""

    def leave(self) -> ToolResult:
        """The score of the state, asked for once, when turns or tokens ran out. Raises EnvFault."""


class Provider(Protocol):
    """An environment that can be asked for tasks and sessions. Safe under threads; constructed once a process."""

    def version(self) -> str:
        """Identifier of the environment's content: a version, a digest of its source, or an empty string."""

    def splits(self) -> tuple[str, ...]: ...

    def num_tasks(self, split: str) -> int: ...

    def tasks(self, split: str, indices: Sequence[int]) -> list[Task]:
        """The named tasks with their specs, in the order asked for; one bulk request where the protocol has one."""

    def open(self, task: Task) -> Session:
        """Open a session; raises EnvFault."""

    def close(self) -> None: ...


@runtime_checkable
class Describer(Protocol):
    """A provider that reads a task's prompt and tools at once, for less than a session that a caller holds."""

    async def describe(self, task: Task) -> tuple[list[Message], tuple[ToolSpec, ...]]:
        """The opening messages and tools of a session that is ended again. Raises EnvFault.

        Runs on the process's loop (xp.envs.loop), after the provider has answered a question there; how many run at
        the same time is the caller's to bound.
        """


@runtime_checkable
class Lister(Protocol):
    """A provider whose environment may list all tasks of a split at once."""

    def listed(self, split: str) -> list[Task] | None:
        """Every task with its spec, in order; None: the environment only counts its tasks. Raises EnvFault."""


class EnvFault(Exception):
    """Infrastructure failed: not the model's doing, so an episode that meets one is void, never scored 0."""

    retry_after_s: float | None = None
    """Seconds that the server asks the client to wait; None: it did not say."""


class EnvUnavailable(EnvFault):
    """The server refused, was not there, or said that it is busy: the request did not execute."""


class SessionLost(EnvFault):
    """The server no longer knows the session."""


class DeadlineExceeded(EnvFault):
    """A call, a creation or an episode took longer than its limit; whether it executed is unknown."""


class ResponseLost(EnvFault):
    """The connection broke after the request was sent; whether it executed is unknown, so it is not repeated."""


class ProtocolError(EnvFault):
    """The server's reply is not what the protocol allows (bad JSON, a reward that is no finite number, ...)."""


class NotOffered(ProtocolError):
    """The server knows no such question (a 4xx), or its whole answer is longer than is read."""


class ToolCrashed(EnvFault):
    """The environment's own tool raised; the session is dead."""


class UnsafeOrigin(EnvFault):
    """A secret would have gone to an origin that is not allowed, or across a redirect."""
