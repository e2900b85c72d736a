"""Draws tokens from logits, each row by its own random number."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import torch

from xp.engines.config import EngineSampling


def draw(
    logits: torch.Tensor, sampling: EngineSampling, randoms: Sequence[Random]
) -> tuple[torch.Tensor, torch.Tensor]:
    """One token per row, and its log-probability with the temperature (with 1 if the temperature is 0).

    Args:
        logits: [rows, vocabulary].
        sampling: temperature, top-p and top-k.
        randoms: one generator per row, of which one number is used.
    """
    logprobs = torch.log_softmax(logits / (sampling.temperature or 1.0), -1)
    if sampling.temperature == 0:
        tokens = logits.argmax(-1)
    else:
        heights = truncated(logprobs, sampling.top_k, sampling.top_p).double().exp().cumsum(-1)
        points = torch.tensor([one.random() for one in randoms], dtype=torch.float64) * heights[:, -1]
        # The first token whose cumulative probability is above the number; tokens of probability 0 are never chosen.
        points = torch.minimum(points, torch.nextafter(heights[:, -1], torch.zeros(())))
        tokens = torch.searchsorted(heights, points[:, None], right=True)[:, 0]
    return tokens, logprobs.gather(1, tokens[:, None])[:, 0]


def truncated(logprobs: torch.Tensor, top_k: int | None, top_p: float) -> torch.Tensor:
    """Log-probabilities with everything outside the top k and the nucleus at minus infinity."""
    if top_k is not None and top_k < logprobs.shape[-1]:
        smallest = logprobs.topk(top_k, -1).values[:, -1:]
        logprobs = logprobs.masked_fill(logprobs < smallest, -torch.inf)
    if top_p < 1:
        ordered, index = logprobs.softmax(-1).sort(-1, descending=True)
        outside = ordered.cumsum(-1) - ordered >= top_p
        logprobs = logprobs.masked_fill(outside.gather(1, index.argsort(-1)), -torch.inf)
    return logprobs
