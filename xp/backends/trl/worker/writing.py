"""Conversations on an inference engine that takes whole token sequences and keeps its own cache of their prefixes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from xp.backends.trl.worker.config import TRLSampling
from xp.backends.trl.worker.conversation import Conversation, RolloutTurn


@dataclass(frozen=True)
class GenerationRequest:
    """A sequence to go on with."""

    ids: Sequence[int]
    max_tokens: int


@dataclass(frozen=True)
class GeneratedTurn:
    """What the policy wrote, its end-of-turn token included where it wrote one."""

    ids: Sequence[int]
    logprobs: Sequence[float]
    """Of each token, under the sampling temperature."""


class Writer(Protocol):
    """An inference engine that holds the policy's current weights."""

    def write(self, requests: Sequence[GenerationRequest]) -> list[GeneratedTurn]:
        """One answer a request, in order."""

    def goes_on(self, is_live: bool) -> bool:
        """Whether this process must call `write` once more, be it with nothing, for the sake of others."""


class WritingEngine:
    """A TurnEngine over a Writer.

    Args:
        writer: takes every live conversation of a turn at once.
        prompts: token ids, one list a conversation.
        end_ids: tokens that end a turn.
        sampling: limits.
    """

    def __init__(
        self, writer: Writer, prompts: Sequence[Sequence[int]], end_ids: Sequence[int], sampling: TRLSampling
    ) -> None:
        self._writer, self._end_ids, self._sampling = writer, end_ids, sampling
        self.conversations = [Conversation(list(prompt)) for prompt in prompts]
        self.live = list(range(len(prompts)))

    def goes_on(self) -> bool:
        """Whether a conversation goes on, here or in a process that the writer works in step with."""
        return self._writer.goes_on(bool(self.live))

    def room(self, number: int) -> int:
        """Tokens that a conversation may still take."""
        return self._sampling.max_response_tokens - len(self.conversations[number].completion_ids)

    def turn(self) -> list[RolloutTurn]:
        """Let the policy write in every live conversation."""
        requests = []
        for number in self.live:
            conversation = self.conversations[number]
            limit = min(self._sampling.max_tokens_per_turn, self.room(number))
            requests.append(GenerationRequest([*conversation.prompt_ids, *conversation.completion_ids], limit))
        turns = []
        for number, written in zip(self.live, self._writer.write(requests), strict=True):
            self.conversations[number].write(written.ids, written.logprobs)
            turns.append(
                RolloutTurn(number, list(written.ids), not written.ids or written.ids[-1] not in self._end_ids)
            )
        return turns

    def extend(self, replies: Mapping[int, Sequence[int]]) -> None:
        """Append the replies; conversations without one are over."""
        self.live = [number for number in self.live if number in replies]
        for number in self.live:
            self.conversations[number].observe(list(replies[number]))
