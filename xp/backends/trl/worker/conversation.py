"""What every engine hands to the rollout: conversations that grow turn by turn, as token ids."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass
class Conversation:
    """Token ids of one episode, as they grow."""

    prompt_ids: list[int]
    completion_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    """Of each completion token under the sampling temperature; 0 where the environment wrote it."""
    mask: list[int] = field(default_factory=list)
    """1 where the policy wrote the token, 0 where the environment did."""

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
    """What the policy wrote in one turn."""

    number: int
    """Which conversation."""
    ids: list[int]
    is_cut: bool
    """Whether a token limit or a stop text ended it instead of a token that ends turns."""

    @property
    def last_id(self) -> int | None:
        return self.ids[-1] if self.ids else None


class TurnEngine(Protocol):
    """Turn by turn: `turn()` lets the policy write in every live conversation, `extend()` hands it what came back."""

    conversations: list[Conversation]
    live: list[int]
    """Numbers of the conversations that go on."""

    def goes_on(self) -> bool:
        """Whether another `turn()` is due: for a conversation of this process, or of one that it writes with."""

    def room(self, number: int) -> int:
        """Tokens that a conversation may still take."""

    def turn(self) -> list[RolloutTurn]:
        """Sample one assistant message in every live conversation."""

    def extend(self, replies: Mapping[int, Sequence[int]]) -> None:
        """Append what came back to each conversation that goes on; the others are over.

        Args:
            replies: conversation -> token ids up to the next turn's beginning.
        """


OpenEngine = Callable[[Sequence[Sequence[int]]], TurnEngine]
"""Begins one conversation for each prompt."""
