"""Interface between engines and rollouts: conversations as token ids that grow independently, turn by turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass
class Conversation:
    """Token ids of one episode."""

    prompt_ids: list[int]
    completion_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    """Log-probability of each completion token with the sampling temperature; 0 for the environment's tokens."""
    mask: list[int] = field(default_factory=list)
    """1 for the policy's tokens, 0 for the environment's."""
    num_turns: int = 0
    """Number of turns that the policy has begun."""

    def write(self, ids: Sequence[int], logprobs: Sequence[float]) -> None:
        """Appends the policy's tokens."""
        self.completion_ids += ids
        self.logprobs += logprobs
        self.mask += [1] * len(ids)

    def observe(self, ids: Sequence[int]) -> None:
        """Appends the environment's tokens."""
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
    """True if a token limit ended the turn (xp.worker.token_budget.is_cut)."""

    @property
    def last_id(self) -> int | None:
        return self.ids[-1] if self.ids else None


Deliver = Callable[[RolloutTurn | BaseException], None]
"""Function that receives each finished turn, or the engine's exception; called from any thread."""


@dataclass(frozen=True)
class Opening:
    """The episodes of an engine."""

    prompts: Sequence[Sequence[int]]
    """Token ids, one list per episode; an episode's number is its index here."""
    names: Sequence[str]
    """Name of each episode (its task and the index of its sample), from which its random seed is derived."""
    places: int
    """Largest number of concurrent episodes."""
    deliver: Deliver


class EpisodeEngine(Protocol):
    """Generates in many independent conversations."""

    @property
    def conversations(self) -> list[Conversation]:
        """Conversations by the episodes' numbers; a finished one may be replaced."""

    @property
    def is_writing(self) -> bool:
        """Returns whether `step()` must be called again before other events."""

    @property
    def max_prompt_tokens(self) -> int: ...

    def begin(self, number: int, prompt: Sequence[int] | None = None) -> None:
        """Begins the first turn of a conversation, with a prompt of its session's own in place of the opening's."""

    def go_on(self, number: int, reply: Sequence[int]) -> None:
        """Appends the reply, up to the next turn's beginning, and begins the next turn."""

    def end(self, number: int) -> None:
        """Ends a conversation and frees its place."""

    def room(self, number: int) -> int:
        """Number of tokens left for a conversation."""

    def step(self, is_live: bool) -> None:
        """Decodes one token in every conversation with a turn of the policy; delivers finished turns.

        Args:
            is_live: whether this process has an unfinished episode.
        """

    def goes_on(self, is_live: bool) -> bool:
        """Returns whether to continue, for an episode of this process or of a process that shares the engine."""

    def close(self) -> None:
        """Frees the engine's resources."""


OpenEngine = Callable[[Opening], EpisodeEngine]
