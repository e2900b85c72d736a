"""Conversations on an inference engine that gets whole token sequences and caches their prefixes itself."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from xp.engines.config import EngineSampling
from xp.engines.conversation import Conversation, Opening, RolloutTurn
from xp.worker.token_budget import is_cut


@dataclass(frozen=True)
class GenerationRequest:
    """Request to continue a sequence."""

    ids: Sequence[int]
    max_tokens: int
    seed: int
    """Seed of this request, so that its text is independent of other requests."""


@dataclass(frozen=True)
class GeneratedTurn:
    """The policy's output of one turn, with its end-of-turn token if there is one."""

    ids: Sequence[int]
    logprobs: Sequence[float]
    """Log-probability of each token, with the sampling temperature."""


Done = Callable[[GeneratedTurn | BaseException], None]
"""Function that receives the result of one request, in any thread."""


class Writer(Protocol):
    """An inference engine with the policy's current weights."""

    @property
    def is_writing(self) -> bool:
        """Returns whether `step()` must be called again, even if only another process needs it."""

    def submit(self, request: GenerationRequest, done: Done) -> None:
        """Generates an answer, concurrently with other requests."""

    def step(self, is_live: bool) -> None:
        """Generates a token of every answer, for an engine in this process."""

    def goes_on(self, is_live: bool) -> bool:
        """Returns whether this process must continue, even if only another process needs it."""

    def close(self) -> None:
        """Ends the use of the engine; no request follows."""


class WritingEngine:
    """An EpisodeEngine over a Writer.

    Args:
        writer: engine that gets each turn as a separate request.
        opening: the episodes.
        end_ids: tokens that end a turn.
        sampling: sampling and limits.
        seed: seed of the rollout; a request's seed is derived from it, the episode's name and the turn.
        is_stop: returns whether the generated tokens end with a stop string.
    """

    def __init__(
        self,
        writer: Writer,
        opening: Opening,
        end_ids: Sequence[int],
        sampling: EngineSampling,
        seed: str,
        is_stop: Callable[[Sequence[int]], bool] = lambda _: False,
    ) -> None:
        self._writer, self._opening, self._is_stop = writer, opening, is_stop
        self._end_ids, self._sampling, self._seed = end_ids, sampling, seed
        self.conversations = [Conversation(list(prompt)) for prompt in opening.prompts]

    @property
    def is_writing(self) -> bool:
        return self._writer.is_writing

    @property
    def max_prompt_tokens(self) -> int:
        return self._sampling.max_prompt_tokens

    def begin(self, number: int, prompt: Sequence[int] | None = None) -> None:
        """Requests the first turn."""
        if prompt is not None:
            self.conversations[number] = Conversation(list(prompt))
        self._write(number)

    def go_on(self, number: int, reply: Sequence[int]) -> None:
        """Requests the next turn."""
        self.conversations[number].observe(list(reply))
        self._write(number)

    def end(self, number: int) -> None:
        """Does nothing: the engine frees its cache itself."""

    def room(self, number: int) -> int:
        """Number of tokens left for a conversation."""
        return self._sampling.room(len(self.conversations[number].completion_ids))

    def step(self, is_live: bool) -> None:
        self._writer.step(is_live)

    def goes_on(self, is_live: bool) -> bool:
        return self._writer.goes_on(is_live)

    def close(self) -> None:
        self._writer.close()

    def _write(self, number: int) -> None:
        conversation = self.conversations[number]
        limit = self._sampling.next_turn(len(conversation.completion_ids))
        words = turn_seed(self._seed, self._opening.names[number], conversation.num_turns)
        seed = int.from_bytes(hashlib.sha256(words.encode()).digest()[:7])
        conversation.num_turns += 1
        ids = [*conversation.prompt_ids, *conversation.completion_ids]

        def done(written: GeneratedTurn | BaseException) -> None:
            if isinstance(written, BaseException):
                self._opening.deliver(written)
                return
            conversation.write(written.ids, written.logprobs)
            by_limit = is_cut(written.ids, limit, self._end_ids, self._is_stop)
            self._opening.deliver(RolloutTurn(number, list(written.ids), by_limit))

        self._writer.submit(GenerationRequest(ids, limit, seed), done)


def turn_seed(seed: str, name: str, turn: int) -> str:
    """Seed of one turn, the same on every engine."""
    return f"{seed}/{name}/{turn}"
