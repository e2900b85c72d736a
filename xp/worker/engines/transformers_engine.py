"""Samples many independent conversations with a model of this process."""

from __future__ import annotations

import heapq
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from statistics import mean
from typing import Any, Final
from weakref import WeakKeyDictionary

import torch
from transformers import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from xp.episode.picture_reader import PictureReader
from xp.episode.tokens import ChatTokens
from xp.errors import ExitCode, XpError
from xp.lib.models.network import has_own_decoding, stated
from xp.lib.nested import grouped
from xp.spec import Sampling
from xp.worker.engines.conversation import (
    Conversation,
    EpisodeEngine,
    OpenEngine,
    Opening,
    RolloutTurn,
)
from xp.worker.engines.kv_cache import Prefix, SlotCache, mask_rule, masks
from xp.worker.media import placeholder_ids
from xp.worker.token_budget import is_cut

ROOM = 256
"""Initial number of tokens of a slot beyond the longest prompt."""
SMALL = 256
"""Largest hidden size of a model that decodes with one thread: faster than two (tools/benchmarks/bench_threads.py)."""
MAX_CONVERSATIONS: Final = 64
"""Largest number of conversations of one pass over whole ones."""
_CHECKED: Final = WeakKeyDictionary[Any, Any]()
"""Models that `check_decoding` has accepted, and the class of their engine."""


@dataclass
class ActiveTurn:
    """A turn that is being generated."""

    number: int
    limit: int
    random: Random
    """Random numbers of this turn only, so that its text is independent of the other conversations."""
    ids: list[int] = field(default_factory=list)


class ModelEngine(EpisodeEngine):
    """An EpisodeEngine over a model of this process.

    Args:
        model: the network.
        opening, end_ids, sampling, seed, is_stop: see EpisodeEngine.
    """

    def __init__(
        self,
        model: Any,
        opening: Opening,
        end_ids: Sequence[int],
        sampling: Sampling,
        seed: str,
        is_stop: Callable[[Sequence[int]], bool] = lambda _: False,
    ) -> None:
        super().__init__(opening, end_ids, sampling, seed, is_stop)
        self._model = model
        self._padding = max(0, next(iter(end_ids)))
        self._never = placeholder_ids(model.config)
        """Tokens of pictures and sound, which are never sampled."""
        self._active: list[ActiveTurn] = []

    @property
    def is_generating(self) -> bool:
        return bool(self._active)

    @torch.inference_mode()
    def step(self, is_live: bool) -> None:
        """Generates a token for every current turn, including turns that begin."""
        logits = self._logits()
        conversations = [self.conversations[turn.number] for turn in self._active]
        contexts: list[list[int]] = []
        if self.sampling.repetition_penalty != 1:
            contexts = [[*known.prompt_ids, *known.completion_ids] for known in conversations]
        randoms = [turn.random for turn in self._active]
        tokens, logprobs = draw(logits, self.sampling, randoms, contexts, self._never)
        unfinished = []
        for turn, conversation, token, logprob in zip(
            self._active, conversations, tokens.tolist(), logprobs.tolist(), strict=True
        ):
            turn.ids.append(token)
            conversation.append_policy_tokens([token], [logprob])
            if token in self._end_ids or len(turn.ids) >= turn.limit or self._is_stop(turn.ids):
                by_limit = is_cut(turn.ids, turn.limit, self._end_ids, self._is_stop)
                self._opening.deliver(RolloutTurn(turn.number, turn.ids, by_limit))
            else:
                unfinished.append(turn)
        self._active = unfinished

    def _begin_turn(self, number: int) -> None:
        seed, limit = self._next_turn(number)
        self._active.append(ActiveTurn(number, limit, Random(seed)))

    @abstractmethod
    def _logits(self) -> torch.Tensor:
        """Logits after the last token of each current turn, [turns, vocabulary]; turns that begin become current."""


class TransformersEngine(ModelEngine):
    """The engine of causal language models, which keeps their keys and values.

    A conversation has a slot of the cache from beginning to end: turns are appended, and the history is never tokenised
    or prefilled again. The common prefix of all prompts is prefilled once, the rest of a prompt once per group.
    """

    def __init__(self, model: Any, opening: Opening, *parts: Any, **named: Any) -> None:
        super().__init__(model, opening, *parts, **named)
        self._prompts = [tuple(prompt) for prompt in opening.prompts]
        self._to_come = Counter(self._prompts)
        distinct = list(self._to_come)
        self._first = distinct[0]
        self._num_shared = _common_prefix(distinct) if len(distinct) > 1 else 0
        """Number of first tokens of `_first` that all prompts begin with."""
        self._shared: Prefix | None = None
        self._known: dict[tuple[int, ...], tuple[Prefix, torch.Tensor]] = {}
        """Prompts that further episodes share, and the logits after them."""
        self._cache = SlotCache(opening.slots, max(map(len, distinct)) + ROOM)
        self._mask_rule = mask_rule(model)
        self._free = list(range(opening.slots))
        self._slots: dict[int, int] = {}
        self._begins: list[int] = []
        self._replies: dict[int, list[int]] = {}

    @property
    def is_generating(self) -> bool:
        return bool(self._active or self._begins or self._replies)

    def begin(self, number: int, conversation: Conversation | None = None) -> None:
        """Joins the next step."""
        if conversation is not None:
            self._replace(number, conversation)
        self._slots[number] = heapq.heappop(self._free)
        self._begins.append(number)

    def continue_with(self, number: int, reply: Sequence[int]) -> None:
        """Joins the next step."""
        conversation = self.conversations[number]
        # The last token that the policy wrote was sampled, but not fed yet.
        self._replies[number] = [conversation.completion_ids[-1], *reply]
        conversation.append_env_tokens(reply)

    def end(self, number: int) -> None:
        """Frees its slot."""
        heapq.heappush(self._free, self._slots.pop(number))

    def step(self, is_live: bool) -> None:
        before = torch.get_num_threads()
        # The operations of a small model take less time than waking another thread.
        if self._model.config.get_text_config().hidden_size <= SMALL:
            torch.set_num_threads(1)
        try:
            super().step(is_live)
        finally:
            torch.set_num_threads(before)

    def _logits(self) -> torch.Tensor:
        parts = [self._decoded(), self._replied(), self._begun()]
        return torch.cat([part for part in parts if part is not None])

    def _decoded(self) -> torch.Tensor | None:
        """Logits after the tokens of the last step."""
        if not self._active:
            return None
        slots = torch.tensor([self._slots[turn.number] for turn in self._active])
        tokens = torch.tensor([[turn.ids[-1]] for turn in self._active])
        count = int(slots.max()) + 1
        if 2 * len(slots) <= count:
            return self._forward(slots, tokens, torch.ones_like(slots))
        # Most slots are active: computing the others with padding is cheaper than copying the cache of the active ones.
        padded = torch.full((count, 1), self._padding)
        padded[slots] = tokens
        ones = torch.ones(count, dtype=torch.long)
        return self._forward(slots, padded, ones, is_padded=True)

    def _replied(self) -> torch.Tensor | None:
        """Logits after the environments' replies since the last step."""
        if not self._replies:
            return None
        replies = self._replies
        self._replies = {}
        logits = self._fed([self._slots[number] for number in replies], list(replies.values()))
        for number in replies:
            self._begin_turn(number)
        return logits

    def _begun(self) -> torch.Tensor | None:
        """Logits after the prompts of the episodes that begin."""
        if not self._begins:
            return None
        begins = self._begins
        self._begins = []
        self._prefill(begins)
        logits = []
        for prompt, numbers in grouped(
            (self._prompts[number], number) for number in begins
        ).items():
            prefix, behind = self._known[prompt]
            self._cache.fill([self._slots[number] for number in numbers], prefix)
            logits.append(behind.expand(len(numbers), -1))
            for number in numbers:
                self._begin_turn(number)
            self._expect(prompt, -len(numbers))
        return torch.cat(logits)

    def _replace(self, number: int, conversation: Conversation) -> None:
        """Gives an episode another conversation, whose tokens are all prefilled."""
        prompt = (*conversation.prompt_ids, *conversation.completion_ids)
        if not self.conversations[number].num_turns:
            self._expect(self._prompts[number], -1)
        self._expect(prompt, 1)
        self._prompts[number] = prompt
        self.conversations[number] = conversation
        num_shared = _common_prefix([self._first[: self._num_shared + 1], prompt])
        if num_shared < self._num_shared:
            self._num_shared = num_shared
            self._shared = None

    def _expect(self, prompt: tuple[int, ...], more: int) -> None:
        """Counts the episodes of a prompt that have not begun; forgets a prompt after its last one."""
        self._to_come[prompt] += more
        if not self._to_come[prompt]:
            self._known.pop(prompt, None)

    def _prefill(self, begins: Sequence[int]) -> None:
        """Prefills new prompts, each in the slot of its first episode."""
        new: dict[tuple[int, ...], int] = {}
        for number in begins:
            if self._prompts[number] not in self._known:
                new.setdefault(self._prompts[number], self._slots[number])
        if not new:
            return
        slots = list(new.values())
        self._cache.lengths[slots] = 0
        if self._num_shared:
            if self._shared is None:
                self._fed(slots[:1], [self._first[: self._num_shared]])
                self._shared = self._cache.prefix(slots[0], self._num_shared)
            self._cache.fill(slots, self._shared)
        logits = self._fed(slots, [prompt[self._num_shared :] for prompt in new])
        for (prompt, slot), behind in zip(new.items(), logits, strict=True):
            self._known[prompt] = self._cache.prefix(slot, len(prompt)), behind

    def _fed(self, slots: Sequence[int], chunks: Sequence[Sequence[int]]) -> torch.Tensor:
        """Feeds each slot its chunk, padded on the right; returns the logits after each slot's last token."""
        lengths = torch.tensor([len(chunk) for chunk in chunks])
        ids = torch.full((len(chunks), int(lengths.max())), self._padding)
        for number, chunk in enumerate(chunks):
            ids[number, : len(chunk)] = torch.tensor(chunk)
        return self._forward(torch.tensor(slots), ids, lengths)

    def _forward(
        self,
        slots: torch.Tensor,
        ids: torch.Tensor,
        lengths: torch.Tensor,
        *,
        is_padded: bool = False,
    ) -> torch.Tensor:
        """Logits after the last token of each slot.

        Args:
            slots: slots that get tokens.
            ids: tokens of each of these slots, [slots, new tokens].
            lengths: number of tokens of each slot without padding.
            is_padded: whether `ids` has all slots up to the last.
        """
        count = len(ids)
        positions = self._cache.aim(None if is_padded else slots, count, ids.shape[1])
        every = torch.arange(count)
        ends, end_of = (lengths - 1).unique(return_inverse=True)
        chosen = slots if is_padded else every
        last_position = int(positions[every, lengths - 1][chosen].max())
        output = self._model(
            input_ids=ids,
            attention_mask=masks(self._mask_rule, self._model, positions, self._cache.width),
            # Padding may be beyond the model's last position.
            position_ids=positions.clamp(max=last_position),
            past_key_values=self._cache.cache,
            use_cache=True,
            logits_to_keep=ends,
        )
        self._cache.lengths[slots] += lengths[chosen]
        logits: torch.Tensor = output.logits[every, end_of]
        return logits[chosen].float()


class RecomputingEngine(ModelEngine):
    """The engine of models whose layers keep another state than keys and values, and of those that read pictures.

    Each token needs a pass over its whole conversation, pixels included: positions of pictures and attention among
    their tokens are the model's own, and so are the same as in the update.

    Args:
        parts: see ModelEngine.
        pictures: the pictures as the model reads them. None means that there are none.
    """

    def __init__(self, *parts: Any, pictures: PictureReader | None = None, **named: Any) -> None:
        super().__init__(*parts, **named)
        self._pictures = pictures
        if pictures is not None:
            self._never = sorted({*self._never, *pictures.form.special_ids})

    def _logits(self) -> torch.Tensor:
        conversations = [self.conversations[turn.number] for turn in self._active]
        sequences = [
            ((*known.prompt_ids, *known.completion_ids), tuple(known.pictures))
            for known in conversations
        ]
        # Equal ones are computed once; those of a pass have similar lengths, so that little is padding.
        ordered = sorted(dict.fromkeys(sequences), key=lambda sequence: len(sequence[0]))
        parts = [
            self._forward(ordered[start : start + MAX_CONVERSATIONS])
            for start in range(0, len(ordered), MAX_CONVERSATIONS)
        ]
        number_of = {sequence: number for number, sequence in enumerate(ordered)}
        return torch.cat(parts)[[number_of[sequence] for sequence in sequences]]

    def _forward(
        self, sequences: Sequence[tuple[tuple[int, ...], tuple[str, ...]]]
    ) -> torch.Tensor:
        lengths = torch.tensor([len(ids) for ids, _ in sequences])
        padded = torch.full((len(sequences), int(lengths.max())), self._padding)
        mask = torch.zeros_like(padded)
        for number, (ids, _) in enumerate(sequences):
            padded[number, : len(ids)] = torch.tensor(ids)
            mask[number, : len(ids)] = 1
        end_of = lengths - 1
        # The layers are causal, so padding on the right changes nothing before it.
        inputs = {"input_ids": padded}
        if self._pictures is not None:
            digests = [digest for _, pictures in sequences for digest in pictures]
            ends, end_of = end_of.unique(return_inverse=True)
            inputs |= {"attention_mask": mask, "logits_to_keep": ends}
            inputs |= self._pictures.inputs(padded, digests)
        device = self._model.device
        output = self._model(
            **{name: value.to(device) for name, value in inputs.items()}, use_cache=False
        )
        logits: torch.Tensor = output.logits[torch.arange(len(sequences)), end_of]
        return logits.float().cpu()


def check_decoding(model: Any) -> type[ModelEngine]:
    """The class of the engine that is this model, by two short conversations and the model's own forward pass.

    Raises:
        XpError: (PLAN) no engine is this model.
    """
    kind: type[ModelEngine] | None = _CHECKED.get(model)
    if kind is not None:
        return kind
    kind = RecomputingEngine
    if has_own_decoding(stated(model.config.to_dict())):
        kind = TransformersEngine
    _check(model, kind)
    _CHECKED[model] = kind
    return kind


@torch.inference_mode()
def _check(model: Any, kind: type[ModelEngine]) -> None:
    limits = {"max_prompt_tokens": 32, "max_tokens_per_turn": 4, "max_response_tokens": 32}
    sampling = Sampling(
        temperature=1.0, top_p=1.0, top_k=None, min_p=0.0, repetition_penalty=1.0, stop=(), **limits
    )
    opening = Opening([[*range(5, 12)], [7, 8, 9]], ["a", "b"], 2, lambda _: None)
    gaps = []
    try:
        engine = kind(model, opening, [-1], sampling, "check")
        for act in (engine.begin, lambda number: engine.continue_with(number, [6] * (number + 1))):
            act(0)
            act(1)
            while engine.is_generating:
                engine.step(is_live=True)
        for conversation in engine.conversations:
            ids = torch.tensor([*conversation.prompt_ids, *conversation.completion_ids])
            mask = torch.tensor(conversation.mask) > 0
            logits = model(input_ids=ids[None], use_cache=False).logits[0, :-1].float()
            own = logits.log_softmax(-1).gather(1, ids[1:, None])[-len(mask) :, 0]
            gaps += (own - torch.tensor(conversation.logprobs))[mask].abs().tolist()
        is_exact = model.dtype is torch.float32
        if not mean(gaps) <= (1e-3 if is_exact else 0.1):
            raise ValueError(f"its log-probabilities differ by {mean(gaps):.2g}")
    except Exception as error:  # a model's own code may raise any
        reason = str(error).split("\n", 1)[0] or type(error).__name__
        fix = "sample with vLLM (eval.engine=vllm, or in a training backend.engine.name=vllm)"
        text = f"xp's own decoding is not that of {type(model).__name__}: {reason}; {fix}"
        raise XpError(text, ExitCode.PLAN) from error


def _common_prefix(sequences: Sequence[Sequence[int]]) -> int:
    """Length of the common prefix, at most one less than the shortest sequence."""
    longest = min(map(len, sequences)) - 1
    return next(
        n for n, ids in enumerate(zip(*sequences, strict=False)) if n == longest or len({*ids}) > 1
    )


def draw(
    logits: torch.Tensor,
    sampling: Sampling,
    randoms: Sequence[Random],
    contexts: Sequence[Sequence[int]] = (),
    never: Sequence[int] = (),
) -> tuple[torch.Tensor, torch.Tensor]:
    """One token per conversation, and its log-probability with the temperature (with 1 if the temperature is 0), before
    penalties and cuts.

    Args:
        logits: [conversations, vocabulary].
        sampling: temperature, top-p, top-k, min-p and the repetition penalty.
        randoms: one generator per conversation, of which one number is used.
        contexts: tokens of each conversation, for the penalty. Empty means that there is none.
        never: tokens that are never drawn.
    """
    scale = sampling.temperature or 1.0
    logprobs = candidates = torch.log_softmax(logits / scale, -1)
    if contexts:
        penalty = RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty)
        penalized = [
            penalty(torch.tensor([ids]), scores[None])
            for scores, ids in zip(logits, contexts, strict=True)
        ]
        candidates = torch.log_softmax(torch.cat(penalized) / scale, -1)
    if never:
        candidates = candidates.clone()
        candidates[:, list(never)] = -torch.inf
    if sampling.temperature == 0:
        tokens = candidates.argmax(-1)
    else:
        kinds = ((MinPLogitsWarper, 0.0), (TopKLogitsWarper, None), (TopPLogitsWarper, 1.0))
        values = (sampling.min_p, sampling.top_k, sampling.top_p)
        for (cut, off), value in zip(kinds, values, strict=True):
            if value != off:
                candidates = cut(value)(None, candidates)
        heights = candidates.double().exp().cumsum(-1)
        points = (
            torch.tensor([random.random() for random in randoms], dtype=torch.float64)
            * heights[:, -1]
        )
        # The first token whose cumulative probability is above the number; tokens of probability 0 are never chosen.
        points = torch.minimum(points, torch.nextafter(heights[:, -1], torch.zeros(())))
        tokens = torch.searchsorted(heights, points[:, None], right=True)[:, 0]
    return tokens, logprobs.gather(1, tokens[:, None])[:, 0]


def over_model(model: Any, chat: ChatTokens, sampling: Sampling, seed: str) -> OpenEngine:
    """Function that opens engines over a model of this process, with pictures or of text alone.

    Raises:
        XpError: as `check_decoding` does.
    """
    is_stop = chat.holds_one_of(sampling.stop)
    kind: Callable[..., EpisodeEngine]
    if chat.pictures is None:
        kind = check_decoding(model)
    else:
        kind = partial(RecomputingEngine, pictures=chat.pictures)
    return lambda opening: kind(model, opening, chat.end_ids, sampling, seed, is_stop)
