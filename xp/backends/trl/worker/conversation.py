"""Interface of an engine to the rollout: conversations as token ids that grow turn by turn, each at its own pace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from xp.errors import XpError


@dataclass
class Conversation:
    """Token ids of one episode, as they grow."""

    prompt_ids: list[int]
    completion_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    """Log-probability of each completion token under the sampling temperature; 0 for the environment's tokens."""
    mask: list[int] = field(default_factory=list)
    """1 where the policy wrote the token, 0 where the environment did."""
    num_turns: int = 0
    """Turns that the policy has begun."""

    def write(self, ids: Sequence[int], logprobs: Sequence[float]) -> None:
        """Append what the policy wrote."""
        self.completion_ids += ids
        self.logprobs += logprobs
        self.mask += [1] * len(ids)

    def observe(self, ids: Sequence[int]) -> None:
        """Append what the environment said."""
        self.completion_ids += ids
        self.logprobs += [0.0] * len(ids)
        self.mask += [0] * len(ids)


@dataclass(frozen=True)
class RolloutTurn:
    """The policy's output of one turn."""

    number: int
    """Number of the conversation."""
    ids: list[int]
    is_cut: bool
    """True if a token limit or a stop text ended the turn, and not a token that ends turns."""

    @property
    def last_id(self) -> int | None:
        return self.ids[-1] if self.ids else None


class EngineLost(XpError):
    """An engine in another process does not answer any more."""


Deliver = Callable[[RolloutTurn | BaseException], None]
"""Takes each turn when it ends, or what made the engine fail; may be called from any thread."""


@dataclass(frozen=True)
class Opening:
    """Description of the episodes that an engine will play."""

    prompts: Sequence[Sequence[int]]
    """Token ids, one list an episode; an episode's number is its place here."""
    names: Sequence[str]
    """Name of each episode: its task and the index of its sample. It seeds the episode's randomness."""
    places: int
    """Episodes that go on at the same time, at most."""
    deliver: Deliver


class EpisodeEngine(Protocol):
    """Writes in many conversations, each at its own pace."""

    @property
    def conversations(self) -> list[Conversation]:
        """Conversations, indexed by the episodes' numbers; who has taken one that is over may put another here."""

    @property
    def is_writing(self) -> bool:
        """Returns whether `step()` must be called again before anything else happens."""

    def begin(self, number: int) -> None:
        """Let the policy write the first turn of a conversation."""

    def go_on(self, number: int, reply: Sequence[int]) -> None:
        """Append what came back, up to the next turn's beginning, and let the policy write the next turn."""

    def end(self, number: int) -> None:
        """A conversation is over; its place is free."""

    def room(self, number: int) -> int:
        """Tokens that a conversation may still take."""

    def step(self, is_live: bool) -> None:
        """Decode one token in every conversation whose turn is the policy's; ended turns are delivered.

        Args:
            is_live: whether this process has an episode that goes on.
        """

    def goes_on(self, is_live: bool) -> bool:
        """Returns whether to continue: for an episode of this process, or of a process that shares the engine."""

    def close(self) -> None:
        """Give back what the engine holds."""


OpenEngine = Callable[[Opening], EpisodeEngine]
