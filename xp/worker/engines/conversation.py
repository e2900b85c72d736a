"""Interface between engines and rollouts: conversations as token ids that grow independently, turn by turn."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from xp.lib.digest import digest_number
from xp.spec import Sampling
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
    pictures: list[str] = field(default_factory=list)
    """Digests of the pictures whose placeholders are among the ids, in their order."""

    def __post_init__(self) -> None:
        self.num_prompt_pictures = len(self.pictures)
        """Number of the pictures of the prompt."""

    @classmethod
    def filling(cls, end_id: int) -> Conversation:
        """One without meaning, of which nothing is trained: losses need a token of a response."""
        conversation = cls([end_id])
        conversation.append_env_tokens([end_id])
        return conversation

    def append_policy_tokens(self, ids: Sequence[int], logprobs: Sequence[float]) -> None:
        """Appends the policy's tokens."""
        self.completion_ids += ids
        self.logprobs += logprobs
        self.mask += [1] * len(ids)

    def append_env_tokens(self, ids: Sequence[int]) -> None:
        """Appends the environment's tokens; their pictures are added to `pictures` by the caller."""
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


Deliver = Callable[[RolloutTurn | BaseException], None]
"""Function that receives each finished turn, or the engine's exception; called from any thread."""


@dataclass(frozen=True)
class Opening:
    """The episodes of an engine."""

    prompts: Sequence[Sequence[int]]
    """Token ids, one list per episode; an episode's number is its index here."""
    names: Sequence[str]
    """Name of each episode (its task and the index of its sample), from which its random seed is derived."""
    slots: int
    """Largest number of concurrent episodes."""
    deliver: Deliver
    pictures: Sequence[Sequence[str]] = ()
    """Digests of the pictures of each prompt. Empty means that there are none."""


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
        is_stop: Callable[[Sequence[int]], bool] = lambda _: False,
    ) -> None:
        self._opening = opening
        self._end_ids = frozenset(end_ids)
        self.sampling = sampling
        self._seed = seed
        self._is_stop = is_stop
        pictures = opening.pictures or [()] * len(opening.prompts)
        self.conversations = [
            Conversation(list(prompt), pictures=list(digests))
            for prompt, digests in zip(opening.prompts, pictures, strict=True)
        ]
        """Conversations by the episodes' numbers; a finished one may be replaced."""

    @property
    def is_generating(self) -> bool:
        """Returns whether `step()` must be called again before other events; never for a server."""
        return False

    def begin(self, number: int, conversation: Conversation | None = None) -> None:
        """Begins the next turn of a conversation: of the opening's prompt, or of another one instead."""
        if conversation is not None:
            self.conversations[number] = conversation
        self._begin_turn(number)

    def continue_with(self, number: int, reply: Sequence[int]) -> None:
        """Appends the reply, up to the next turn's beginning, and begins the next turn."""
        self.conversations[number].append_env_tokens(reply)
        self._begin_turn(number)

    @abstractmethod
    def _begin_turn(self, number: int) -> None:
        """Begins the next turn of a conversation."""

    def end(self, number: int) -> None:  # noqa: B027 - not every engine has slots
        """Ends a conversation and frees its slot."""

    def room(self, number: int) -> int:
        """Number of tokens left for a conversation."""
        return self.sampling.room(len(self.conversations[number].completion_ids))

    def step(self, is_live: bool) -> None:
        """Decodes one token in every conversation with a turn of the policy; delivers finished turns.

        Args:
            is_live: whether this process has an unfinished episode.
        """
        raise NotImplementedError

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
        return seed, self.sampling.next_turn(len(conversation.completion_ids))


OpenEngine = Callable[[Opening], EpisodeEngine]


@dataclass(frozen=True)
class GenerationRequest:
    """Request to continue a sequence."""

    ids: Sequence[int]
    max_tokens: int
    seed: int
    """Seed of this request, so that its text is independent of other requests."""
    pictures: Sequence[str] = ()
    """Digests of the pictures whose placeholders are among the ids, in their order."""


@dataclass(frozen=True)
class GeneratedTurn:
    """The policy's output of one turn, with its end-of-turn token if there is one."""

    ids: Sequence[int]
    logprobs: Sequence[float]
    """Log-probability of each token, with the sampling temperature."""


Done = Callable[[GeneratedTurn | BaseException], None]
"""Function that receives the result of one request, in any thread."""


class RequestEngine(EpisodeEngine):
    """An engine that gets each turn as a separate request, with all tokens of the conversation."""

    @abstractmethod
    def submit(self, request: GenerationRequest, done: Done) -> None:
        """Generates an answer, concurrently with other requests."""

    def _begin_turn(self, number: int) -> None:
        conversation = self.conversations[number]
        words, limit = self._next_turn(number)
        seed = digest_number(words, 7)
        ids = [*conversation.prompt_ids, *conversation.completion_ids]

        def done(turn: GeneratedTurn | BaseException) -> None:
            if isinstance(turn, BaseException):
                self._opening.deliver(turn)
                return
            conversation.append_policy_tokens(turn.ids, turn.logprobs)
            by_limit = is_cut(turn.ids, limit, self._end_ids, self._is_stop)
            self._opening.deliver(RolloutTurn(number, list(turn.ids), by_limit))

        self.submit(GenerationRequest(ids, limit, seed, tuple(conversation.pictures)), done)
