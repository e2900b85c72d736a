"""Samples many independent conversations with a model of this process, and keeps their key-value cache.

A conversation has a slot of the cache from beginning to end: turns are appended, and the history is never tokenised or
prefilled again. The common prefix of all prompts is prefilled once, the rest of a prompt once per group.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
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

from xp.errors import ExitCode, XpError
from xp.lib.models.network import has_own_decoding, stated
from xp.lib.nested import grouped
from xp.spec import Sampling
from xp.worker.engines.conversation import (
    Conversation,
    EpisodeEngine,
    Opening,
    RolloutTurn,
)
from xp.worker.engines.kv_cache import Prefix, SlotCache, TokenCache, mask_rule, masks
from xp.worker.media import placeholder_ids
from xp.worker.token_budget import is_cut

ROOM = 256
"""Initial number of tokens of a slot beyond the longest prompt."""
SMALL = 256
"""Largest hidden size of a model that decodes with one thread: faster than two (tools/benchmarks/bench_threads.py)."""
_CHECKED: Final = WeakKeyDictionary[Any, Any]()
"""Models that `check_decoding` has accepted, and the class of their engine."""


@dataclass
class ActiveTurn:
    """A turn that is being generated."""

    number: int
    slot: int
    limit: int
    random: Random
    """Random numbers of this turn only, so that its text is independent of the other conversations."""
    ids: list[int] = field(default_factory=list)


class TransformersEngine(EpisodeEngine):
    """An EpisodeEngine over a causal language model of this process that `check_decoding` accepts."""

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
        self._prompts = [tuple(prompt) for prompt in opening.prompts]
        self._to_come = Counter(self._prompts)
        distinct = list(self._to_come)
        self._first = distinct[0]
        self._num_shared = _common_prefix(distinct) if len(distinct) > 1 else 0
        """Number of first tokens of `_first` that all prompts begin with."""
        self._shared: Prefix | None = None
        self._known: dict[tuple[int, ...], tuple[Prefix, torch.Tensor]] = {}
        """Prompts that further episodes share, and the logits after them."""
        self._cache = self._new_cache(opening.places, max(map(len, distinct)) + ROOM)
        self._placeholder_ids = placeholder_ids(model.config)
        """Tokens of pictures and sound, which are never sampled."""
        self._free = list(range(opening.places))
        self._slots: dict[int, int] = {}
        self._begins: list[int] = []
        self._replies: dict[int, list[int]] = {}
        self._active: list[ActiveTurn] = []

    def _new_cache(self, count: int, capacity: int) -> Any:
        """The slots; `count` and `capacity` as in SlotCache."""
        self._mask_rule = mask_rule(self._model)
        return SlotCache(count, capacity)

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

    @torch.inference_mode()
    def step(self, is_live: bool) -> None:
        """Generates a token for every current turn, including turns that begin."""
        before = torch.get_num_threads()
        # The operations of a small model take less time than waking another thread.
        torch.set_num_threads(
            1 if self._model.config.get_text_config().hidden_size <= SMALL else before
        )
        try:
            self._step()
        finally:
            torch.set_num_threads(before)

    def _step(self) -> None:
        parts = [self._decoded(), self._replied(), self._begun()]
        logits = torch.cat([part for part in parts if part is not None])
        penalizes = self.sampling.repetition_penalty != 1
        rows = [self.conversations[turn.number] for turn in self._active if penalizes]
        contexts = [[*row.prompt_ids, *row.completion_ids] for row in rows]
        tokens, logprobs = draw(
            logits,
            self.sampling,
            [turn.random for turn in self._active],
            contexts,
            self._placeholder_ids,
        )
        unfinished = []
        for turn, token, logprob in zip(
            self._active, tokens.tolist(), logprobs.tolist(), strict=True
        ):
            turn.ids.append(token)
            self.conversations[turn.number].append_policy_tokens([token], [logprob])
            if token in self._end_ids or len(turn.ids) >= turn.limit or self._is_stop(turn.ids):
                by_limit = is_cut(turn.ids, turn.limit, self._end_ids, self._is_stop)
                self._opening.deliver(RolloutTurn(turn.number, turn.ids, by_limit))
            else:
                unfinished.append(turn)
        self._active = unfinished

    def _decoded(self) -> torch.Tensor | None:
        """Logits after the tokens of the last step."""
        if not self._active:
            return None
        slots = torch.tensor([turn.slot for turn in self._active])
        tokens = torch.tensor([[turn.ids[-1]] for turn in self._active])
        count = int(slots.max()) + 1
        if 2 * len(slots) <= count:
            return self._forward(slots, tokens)
        # Most slots are active: computing the others with padding is cheaper than copying the cache of the active ones.
        padded = torch.full((count, 1), self._padding)
        padded[slots] = tokens
        return self._forward(slots, padded, is_padded=True)

    def _replied(self) -> torch.Tensor | None:
        """Logits after the environments' replies since the last step."""
        if not self._replies:
            return None
        replies = self._replies
        self._replies = {}
        logits = self._fed([self._slots[number] for number in replies], list(replies.values()))
        self._begin_turns(replies)
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
            self._begin_turns(numbers)
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

    def _begin_turns(self, numbers: Sequence[int] | dict[int, list[int]]) -> None:
        for number in numbers:
            seed, limit = self._next_turn(number)
            self._active.append(ActiveTurn(number, self._slots[number], limit, Random(seed)))

    def _fed(self, slots: Sequence[int], chunks: Sequence[Sequence[int]]) -> torch.Tensor:
        """Feeds each slot its chunk, padded on the right; returns the logits after each slot's last token."""
        lengths = torch.tensor([len(chunk) for chunk in chunks])
        ids = torch.full((len(chunks), int(lengths.max())), self._padding)
        for row, chunk in enumerate(chunks):
            ids[row, : len(chunk)] = torch.tensor(chunk)
        return self._forward(torch.tensor(slots), ids, lengths)

    def _forward(
        self,
        slots: torch.Tensor,
        ids: torch.Tensor,
        lengths: torch.Tensor | None = None,
        *,
        is_padded: bool = False,
    ) -> torch.Tensor:
        """Logits after the last token of each slot.

        Args:
            slots: slots that get tokens.
            ids: tokens, a row for each of these slots.
            lengths: number of tokens of each row without padding. None means one.
            is_padded: whether the rows are those of all slots up to the last.
        """
        count = len(ids)
        positions = self._cache.aim(None if is_padded else slots, count, ids.shape[1])
        if lengths is None:
            columns = torch.zeros(count, dtype=torch.long)
        else:
            columns = lengths - 1
        kept, places = (
            (columns[:1], columns) if lengths is None else columns.unique(return_inverse=True)
        )
        ends = positions[torch.arange(count), columns]
        output = self._model(
            input_ids=ids,
            attention_mask=masks(self._mask_rule, self._model, positions, self._cache.width),
            # Padding may be beyond the model's last position.
            position_ids=positions.clamp(max=int((ends[slots] if is_padded else ends).max())),
            past_key_values=self._cache.cache,
            use_cache=True,
            logits_to_keep=kept,
        )
        self._cache.lengths[slots] += 1 if lengths is None else lengths
        logits: torch.Tensor = output.logits[torch.arange(count), places]
        return (logits[slots] if is_padded else logits).float()


class RecomputingEngine(TransformersEngine):
    """The engine of models whose layers keep another state than keys and values: each token needs a pass over its whole
    conversation."""

    def _new_cache(self, count: int, capacity: int) -> Any:
        return TokenCache(count)

    def _forward(
        self,
        slots: torch.Tensor,
        ids: torch.Tensor,
        lengths: torch.Tensor | None = None,
        *,
        is_padded: bool = False,
    ) -> torch.Tensor:
        rows = ids[slots] if is_padded else ids
        if lengths is None:
            counts = [1] * len(slots)
        else:
            counts = lengths.tolist()
        for slot, row, count in zip(slots.tolist(), rows.tolist(), counts, strict=True):
            self._cache.append(slot, row[:count])
        sequences = [self._cache.tokens(slot) for slot in slots.tolist()]
        ends = torch.tensor([len(sequence) - 1 for sequence in sequences])
        padded = torch.full((len(sequences), int(ends.max()) + 1), self._padding)
        for number, sequence in enumerate(sequences):
            padded[number, : len(sequence)] = torch.tensor(sequence)
        # The layers are causal, so padding on the right changes nothing before it.
        logits: torch.Tensor = self._model(input_ids=padded, use_cache=False).logits
        return logits[torch.arange(len(sequences)), ends].float()


def check_decoding(model: Any) -> type[TransformersEngine]:
    """The class of the engine that is this model, by two short conversations and the model's own forward pass.

    Raises:
        XpError: (PLAN) no engine is this model.
    """
    checked: type[TransformersEngine] | None = _CHECKED.get(model)
    if checked is not None:
        return checked
    shape = stated(model.config.to_dict())
    if has_own_decoding(shape):
        kind = TransformersEngine
    else:
        kind = RecomputingEngine
    _check(model, kind)
    _CHECKED[model] = kind
    return kind


@torch.inference_mode()
def _check(model: Any, kind: type[TransformersEngine]) -> None:
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
    """One token per row, and its log-probability with the temperature (with 1 if the temperature is 0), before
    penalties and cuts.

    Args:
        logits: [rows, vocabulary].
        sampling: temperature, top-p, top-k, min-p and the repetition penalty.
        randoms: one generator per row, of which one number is used.
        contexts: tokens of each row's conversation, for the penalty. Empty means that there is none.
        never: tokens that are never drawn.
    """
    scale = sampling.temperature or 1.0
    logprobs = candidates = torch.log_softmax(logits / scale, -1)
    if contexts:
        penalty = RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty)
        rows = [
            penalty(torch.tensor([ids]), row[None])
            for row, ids in zip(logits, contexts, strict=True)
        ]
        candidates = torch.log_softmax(torch.cat(rows) / scale, -1)
    if never:
        candidates = candidates.clone()
        candidates[:, list(never)] = -torch.inf
    if sampling.temperature == 0:
        tokens = candidates.argmax(-1)
    else:
        kinds = ((MinPLogitsWarper, 0.0), (TopKLogitsWarper, None), (TopPLogitsWarper, 1.0))
        values = (sampling.min_p, sampling.top_k, sampling.top_p)
        for (cut, off), value in zip(kinds, values, strict=True):
            if value == off:
                candidates = candidates
            else:
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
