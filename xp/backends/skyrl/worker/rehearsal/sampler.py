"""Samples one turn for a batch of prompts with a Hugging Face model, on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch


@dataclass(frozen=True)
class SampleRequest:
    """Request for one turn."""

    ids: list[int]
    max_tokens: int
    temperature: float
    """Sampling temperature; 0: greedy."""
    top_p: float
    top_k: int
    """Number of likeliest tokens; -1: off."""
    end_ids: tuple[int, ...]
    """Tokens that end the turn."""
    stop: tuple[str, ...] = ()
    """Strings that end a turn; they stay in it."""


@dataclass
class SampledText:
    """One turn, with the token that ends it if there is one."""

    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    """Log-probabilities with the temperature, before top-p and top-k."""
    is_ended: bool = False
    text: str = ""
    """Text without special tokens, as from vLLM."""


class Sampler:
    """A model and its tokenizer.

    Args:
        directory: directory of the model.
        seed: seed of the sampling.
        num_threads: number of torch's threads.
    """

    def __init__(self, directory: str, seed: int, num_threads: int) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        torch.set_num_threads(num_threads)
        self._tokenizer = AutoTokenizer.from_pretrained(directory)
        self._model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
        self._generator = torch.Generator().manual_seed(seed)

    def take(self, weights: Path) -> None:
        """Replaces the weights by those of a safetensors file; raises RuntimeError if the names differ."""
        from safetensors.torch import load_file

        missing, unexpected = self._model.load_state_dict(load_file(weights), strict=False)
        tied = set(getattr(self._model, "all_tied_weights_keys", {}) or {})
        if unexpected or set(missing) - tied:
            raise RuntimeError(f"{weights} is not of this model: {missing=}, {unexpected=}")

    def write(self, requests: Sequence[SampleRequest]) -> list[SampledText]:
        """Generates one turn for each request."""
        with torch.inference_mode():
            return self._write(requests)

    def _write(self, requests: Sequence[SampleRequest]) -> list[SampledText]:
        written = [SampledText() for _ in requests]
        end = self._tokenizer.eos_token_id
        ids, attended = _padded([request.ids for request in requests], end)
        positions = (attended.cumsum(-1) - 1).clamp(min=0)
        cache = None
        open_rows = set(range(len(requests)))
        while True:
            output = self._model(
                input_ids=ids,
                attention_mask=attended,
                position_ids=positions,
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
            )
            cache = output.past_key_values
            tokens, logprobs = self._sample(output.logits[:, -1].float(), requests)
            for row in sorted(open_rows):
                one = written[row]
                one.ids.append(tokens[row])
                one.logprobs.append(logprobs[row])
                is_end = tokens[row] in requests[row].end_ids
                one.is_ended = is_end or self._holds(one.ids, requests[row].stop)
                if one.is_ended or len(one.ids) >= requests[row].max_tokens:
                    open_rows.discard(row)
            if not open_rows:
                break
            # Finished rows continue, but their tokens are ignored.
            ids = torch.tensor(tokens)[:, None]
            attended = torch.cat([attended, attended.new_ones(len(requests), 1)], 1)
            positions = positions[:, -1:] + 1
        for one in written:
            one.text = self._tokenizer.decode(one.ids, skip_special_tokens=True)
        return written

    def _holds(self, ids: Sequence[int], texts: Sequence[str]) -> bool:
        """Returns whether the last tokens contain one of these texts."""
        longest = max((len(text.encode()) for text in texts), default=0)
        return bool(texts) and any(text in self._tokenizer.decode(ids[-longest - 1 :]) for text in texts)

    def _sample(self, logits: Any, requests: Sequence[SampleRequest]) -> tuple[list[int], list[float]]:
        temperatures = torch.tensor([request.temperature for request in requests])[:, None]
        is_greedy = temperatures[:, 0] == 0
        logprobs = torch.log_softmax(logits / torch.where(temperatures == 0, 1.0, temperatures), -1)
        allowed = _truncated(logprobs, requests)
        drawn = torch.multinomial(allowed.exp(), 1, generator=self._generator)[:, 0]
        tokens = torch.where(is_greedy, logits.argmax(-1), drawn)
        chosen = logprobs.gather(1, tokens[:, None])[:, 0]
        return tokens.tolist(), chosen.tolist()


def _truncated(logprobs: Any, requests: Sequence[SampleRequest]) -> Any:
    """Log-probabilities with minus infinity outside each row's top k and nucleus."""
    if all(request.top_k <= 0 and request.top_p >= 1 for request in requests):
        return logprobs
    ordered, index = logprobs.sort(-1, descending=True)
    sizes = torch.tensor([request.top_k if request.top_k > 0 else logprobs.shape[-1] for request in requests])
    shares = torch.tensor([request.top_p for request in requests])
    before = ordered.exp().cumsum(-1) - ordered.exp()
    outside = (torch.arange(logprobs.shape[-1])[None] >= sizes[:, None]) | (before >= shares[:, None])
    return logprobs.masked_fill(outside.gather(1, index.argsort(-1)), -torch.inf)


def _padded(sequences: Sequence[Sequence[int]], pad_id: int) -> tuple[Any, Any]:
    """Token ids, padded on the left, and the mask of real tokens."""
    longest = max(map(len, sequences))
    ids = torch.full((len(sequences), longest), pad_id)
    attended = torch.zeros(len(sequences), longest, dtype=torch.long)
    for row, sequence in enumerate(sequences):
        ids[row, longest - len(sequence) :] = torch.tensor(sequence)
        attended[row, longest - len(sequence) :] = 1
    return ids, attended
