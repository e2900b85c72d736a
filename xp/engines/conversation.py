"""Interface between engines and rollouts: conversations as token ids that grow independently, turn by turn."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from xp.episode.tokens import ChatTokens
from xp.worker.stage import Sampling
from xp.worker.token_budget import is_cut


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


class EpisodeEngine(ABC):
    """Generates in many independent conversations.

    Args:
        opening: the episodes.
        end_ids: tokens that end a turn.
        sampling: sampling and limits.
        seed: seed of the rollout; a turn's randomness is derived from it, the episode's name and the turn.
        is_stop: returns whether the generated tokens end with a stop string.
    """

    def __init__(
        self,
        opening: Opening,
        end_ids: Sequence[int],
        sampling: Sampling,
        seed: str,
        is_stop: Callable[[Sequence[int]], bool],
    ) -> None:
        self._opening, self._end_ids, self._sampling = opening, frozenset(end_ids), sampling
        self._seed, self._is_stop = seed, is_stop
        self.conversations = [Conversation(list(prompt)) for prompt in opening.prompts]
        """Conversations by the episodes' numbers; a finished one may be replaced."""

    @property
    @abstractmethod
    def is_writing(self) -> bool:
        """Returns whether `step()` must be called again before other events."""

    @property
    def max_prompt_tokens(self) -> int:
        return self._sampling.max_prompt_tokens

    @abstractmethod
    def begin(self, number: int, prompt: Sequence[int] | None = None) -> None:
        """Begins the first turn of a conversation, with a prompt of its session's own in place of the opening's."""

    @abstractmethod
    def go_on(self, number: int, reply: Sequence[int]) -> None:
        """Appends the reply, up to the next turn's beginning, and begins the next turn."""

    def end(self, number: int) -> None:  # noqa: B027 - not every engine has places
        """Ends a conversation and frees its place."""

    def room(self, number: int) -> int:
        """Number of tokens left for a conversation."""
        return self._sampling.room(len(self.conversations[number].completion_ids))

    @abstractmethod
    def step(self, is_live: bool) -> None:
        """Decodes one token in every conversation with a turn of the policy; delivers finished turns.

        Args:
            is_live: whether this process has an unfinished episode.
        """

    def should_continue(self, is_live: bool) -> bool:
        """Returns whether to continue, for an episode of this process or of a process that shares the engine."""
        return is_live

    def close(self) -> None:  # noqa: B027
        """Frees the engine's resources."""

    def _next_turn(self, number: int) -> tuple[str, int]:
        """Seed of the conversation's next turn, the same on every engine, and its largest number of tokens."""
        conversation = self.conversations[number]
        seed = f"{self._seed}/{self._opening.names[number]}/{conversation.num_turns}"
        conversation.num_turns += 1
        return seed, self._sampling.next_turn(len(conversation.completion_ids))


OpenEngine = Callable[[Opening], EpisodeEngine]


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

    def should_continue(self, is_live: bool) -> bool:
        """Returns whether this process must continue, even if only another process needs it."""

    def close(self) -> None:
        """Ends the use of the engine; no request follows."""


class WritingEngine(EpisodeEngine):
    """An EpisodeEngine over a Writer, which gets each turn as a separate request."""

    def __init__(
        self,
        writer: Writer,
        opening: Opening,
        end_ids: Sequence[int],
        sampling: Sampling,
        seed: str,
        is_stop: Callable[[Sequence[int]], bool] = lambda _: False,
    ) -> None:
        super().__init__(opening, end_ids, sampling, seed, is_stop)
        self._writer = writer

    @property
    def is_writing(self) -> bool:
        return self._writer.is_writing

    def begin(self, number: int, prompt: Sequence[int] | None = None) -> None:
        """Requests the first turn."""
        if prompt is not None:
            self.conversations[number] = Conversation(list(prompt))
        self._write(number)

    def go_on(self, number: int, reply: Sequence[int]) -> None:
        """Requests the next turn."""
        self.conversations[number].observe(list(reply))
        self._write(number)

    def step(self, is_live: bool) -> None:
        self._writer.step(is_live)

    def should_continue(self, is_live: bool) -> bool:
        return self._writer.should_continue(is_live)

    def close(self) -> None:
        self._writer.close()

    def _write(self, number: int) -> None:
        conversation, (words, limit) = self.conversations[number], self._next_turn(number)
        seed = int.from_bytes(hashlib.sha256(words.encode()).digest()[:7])
        ids = [*conversation.prompt_ids, *conversation.completion_ids]

        def done(written: GeneratedTurn | BaseException) -> None:
            if isinstance(written, BaseException):
                self._opening.deliver(written)
                return
            conversation.write(written.ids, written.logprobs)
            by_limit = is_cut(written.ids, limit, self._end_ids, self._is_stop)
            self._opening.deliver(RolloutTurn(number, list(written.ids), by_limit))

        self._writer.submit(GenerationRequest(ids, limit, seed), done)


def over_writers(writer: Callable[[], Writer], chat: ChatTokens, sampling: Sampling, seed: str) -> OpenEngine:
    """Opens a WritingEngine over a new writer for each group of episodes."""
    is_stop = chat.holds_one_of(sampling.stop)
    return lambda opening: WritingEngine(writer(), opening, chat.end_ids, sampling, seed, is_stop)
