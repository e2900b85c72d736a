"""Samples many conversations in lock-step and keeps the key-value cache over their turns.

A turn appends: history is never tokenised again and never prefilled twice. What all prompts begin with is prefilled
once, the rest of a prompt once for all episodes of its group.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from xp.backends.trl.worker.config import TRLSampling
from xp.backends.trl.worker.conversation import Conversation, RolloutTurn
from xp.backends.trl.worker.kv_cache import buffer_cache


class TransformersEngine:
    """Turn by turn: `turn()` lets the policy write in every live conversation, `extend()` hands it what came back.

    Args:
        model: a Hugging Face causal language model with `model.model` and `model.lm_head`.
        prompts: token ids, one list a conversation; equal lists are prefilled once.
        end_ids: tokens that end a turn.
        sampling: temperature and limits.
        generator: source of randomness.
        is_stop: whether a text that ends a turn is at the end of what was written.
    """

    def __init__(
        self,
        model: Any,
        prompts: Sequence[Sequence[int]],
        end_ids: Sequence[int],
        sampling: TRLSampling,
        generator: torch.Generator,
        is_stop: Callable[[Sequence[int]], bool] = lambda _: False,
    ) -> None:
        self._model, self._sampling, self._generator = model, sampling, generator
        self._end_ids = torch.tensor(list(end_ids))
        self._is_stop = is_stop
        self.conversations = [Conversation(list(prompt)) for prompt in prompts]
        self.live: list[int] = list(range(len(prompts)))
        """Numbers of the conversations that go on, in the order of the cache's rows."""
        self._attended = torch.zeros(0, 0, dtype=torch.long)
        self._positions = torch.zeros(0, dtype=torch.long)
        capacity = max(map(len, prompts)) + 256
        self._cache = buffer_cache(model.config.num_hidden_layers, capacity)
        with torch.inference_mode():
            self._logits = self._prefill(prompts)

    def goes_on(self) -> bool:
        """Whether a conversation is left; no other process waits for this one."""
        return bool(self.live)

    def room(self, number: int) -> int:
        """Tokens that a conversation may still take."""
        return self._sampling.max_response_tokens - len(self.conversations[number].completion_ids)

    @torch.inference_mode()
    def turn(self) -> list[RolloutTurn]:
        """Sample one assistant message in every live conversation."""
        limits = [min(self._sampling.max_tokens_per_turn, self.room(number)) for number in self.live]
        written: list[list[int]] = [[] for _ in self.live]
        is_writing = torch.ones(len(self.live), dtype=torch.bool)
        logits = self._logits
        while True:
            tokens, logprobs = self._sample(logits)
            self._record(tokens.tolist(), logprobs.tolist(), is_writing.tolist(), written)
            at_limit = torch.tensor(
                [len(ids) >= limit or self._is_stop(ids) for ids, limit in zip(written, limits, strict=True)]
            )
            goes_on = is_writing & ~torch.isin(tokens, self._end_ids) & ~at_limit
            if not goes_on.any():
                break
            # Rows that are done are fed padding that attention never sees.
            self._attended = torch.cat([self._attended, goes_on[:, None].long()], 1)
            logits = self._forward(tokens[:, None], self._positions[:, None])[:, 0]
            self._positions = self._positions + goes_on
            is_writing = goes_on
        ends = self._end_ids.tolist()
        return [RolloutTurn(number, ids, ids[-1] not in ends) for number, ids in zip(self.live, written, strict=True)]

    @torch.inference_mode()
    def extend(self, replies: Mapping[int, Sequence[int]]) -> None:
        """Append what came back to each conversation that goes on; the others leave the cache.

        Args:
            replies: conversation -> token ids up to the next turn's beginning.
        """
        kept = [row for row, number in enumerate(self.live) if number in replies]
        if len(kept) < len(self.live):
            self._select(torch.tensor(kept, dtype=torch.long))
            self.live = [self.live[row] for row in kept]
        if not kept:
            return
        chunks = []
        for number in self.live:
            conversation, reply = self.conversations[number], list(replies[number])
            # The last token that the policy wrote was sampled, but not fed yet.
            chunks.append([conversation.completion_ids[-1], *reply])
            conversation.observe(reply)
        self._logits = self._feed(chunks)

    def _prefill(self, prompts: Sequence[Sequence[int]]) -> torch.Tensor:
        distinct: dict[tuple[int, ...], int] = {}
        rows = [distinct.setdefault(tuple(prompt), len(distinct)) for prompt in prompts]
        unique = list(distinct)
        shared = _common_prefix(unique) if len(unique) > 1 else 0
        first = 1 if shared else len(unique)
        self._attended = torch.zeros(first, 0, dtype=torch.long)
        self._positions = torch.zeros(first, dtype=torch.long)
        if shared:
            self._feed([list(unique[0][:shared])])
            self._select(torch.zeros(len(unique), dtype=torch.long))
        logits = self._feed([list(ids[shared:]) for ids in unique])
        index = torch.tensor(rows, dtype=torch.long)
        self._select(index)
        return logits[index]

    def _feed(self, chunks: Sequence[Sequence[int]]) -> torch.Tensor:
        """Feed each row its chunk, padded on the right; gives back the logits after each row's last token."""
        lengths = torch.tensor([len(chunk) for chunk in chunks])
        columns = torch.arange(int(lengths.max()))
        ids = torch.full((len(chunks), len(columns)), int(self._end_ids[0]))
        for row, chunk in enumerate(chunks):
            ids[row, : len(chunk)] = torch.tensor(chunk)
        self._attended = torch.cat([self._attended, (columns[None] < lengths[:, None]).long()], 1)
        logits = self._forward(ids, self._positions[:, None] + columns[None], last=lengths - 1)
        self._positions = self._positions + lengths
        return logits

    def _forward(self, ids: torch.Tensor, positions: torch.Tensor, last: torch.Tensor | None = None) -> torch.Tensor:
        hidden = self._model.model(
            input_ids=ids,
            attention_mask=self._attended,
            position_ids=positions,
            past_key_values=self._cache,
            use_cache=True,
        ).last_hidden_state
        if last is not None:
            hidden = hidden[torch.arange(len(last)), last]
        logits: torch.Tensor = self._model.lm_head(hidden)
        return logits.float()

    def _sample(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """One token a row, and its log-probability under the temperature (1 where that is 0)."""
        temperature = self._sampling.temperature
        logprobs = torch.log_softmax(logits / (temperature or 1.0), -1)
        if temperature == 0:
            tokens = logits.argmax(-1)
        else:
            candidates = _truncate(logprobs, self._sampling.top_k, self._sampling.top_p)
            tokens = torch.multinomial(candidates.exp(), 1, generator=self._generator)[:, 0]
        return tokens, logprobs.gather(1, tokens[:, None])[:, 0]

    def _record(
        self, tokens: list[int], logprobs: list[float], is_writing: list[bool], written: list[list[int]]
    ) -> None:
        for row, number in enumerate(self.live):
            if is_writing[row]:
                written[row].append(tokens[row])
                self.conversations[number].write([tokens[row]], [logprobs[row]])

    def _select(self, rows: torch.Tensor) -> None:
        for layer in self._cache.layers:
            layer.select(rows)
        self._attended, self._positions = self._attended[rows], self._positions[rows]


def _common_prefix(sequences: Sequence[Sequence[int]]) -> int:
    """Length of what all begin with, at most one less than the shortest."""
    longest = min(map(len, sequences)) - 1
    for column in range(longest):
        if len({sequence[column] for sequence in sequences}) > 1:
            return column
    return longest


def _truncate(logprobs: torch.Tensor, top_k: int | None, top_p: float) -> torch.Tensor:
    """Log-probabilities with everything outside the top k and the nucleus at minus infinity."""
    if top_k is not None and top_k < logprobs.shape[-1]:
        smallest = logprobs.topk(top_k, -1).values[:, -1:]
        logprobs = logprobs.masked_fill(logprobs < smallest, -torch.inf)
    if top_p < 1:
        ordered, index = logprobs.softmax(-1).sort(-1, descending=True)
        outside = ordered.cumsum(-1) - ordered >= top_p
        logprobs = logprobs.masked_fill(outside.gather(1, index.argsort(-1)), -torch.inf)
    return logprobs
