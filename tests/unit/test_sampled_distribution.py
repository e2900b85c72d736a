"""min_p and repetition_penalty: what xp's own decoding draws is what transformers' processors leave; keys; refusals."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
import torch
from transformers import MinPLogitsWarper, RepetitionPenaltyLogitsProcessor, TemperatureLogitsWarper

from tests.support.sections import replace, sampling_of
from xp.spec import Sampling
from xp.worker.engines.transformers_engine import draw

PLAIN = sampling_of(64, 8, 32, temperature=0.7)
SEEN = [[0, 3, 3, 5], [1, 2]]


def drawn(
    sampling: Sampling, number: int = 5_000
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Two rows of logits, the frequencies of their draws, and the log-probabilities of the last ones."""
    logits = torch.randn(2, 8, generator=torch.Generator().manual_seed(3)) * 2
    rows = logits.repeat_interleave(number, 0)
    seen = [one for one in SEEN for _ in range(number)]
    randoms: list[Any] = [Random(f"{place}") for place in range(len(rows))]
    tokens, logprobs = draw(
        rows, sampling, randoms, seen if sampling.repetition_penalty != 1 else ()
    )
    counts = torch.stack([torch.bincount(half, minlength=8) for half in tokens.view(2, -1)]).float()
    assert torch.equal(
        logprobs,
        torch.log_softmax(rows / (sampling.temperature or 1), -1).gather(1, tokens[:, None])[:, 0],
    )
    return logits, counts / number, tokens


@pytest.mark.parametrize(
    ("min_p", "penalty"),
    [
        (0.0, 1.0),
        (0.2, 1.0),
        (0.0, 1.8),
        (0.2, 1.8),
    ],
)
def test_the_draws_are_of_transformers_own_distribution(min_p: float, penalty: float) -> None:
    logits, found, _ = drawn(replace(PLAIN, min_p=min_p, repetition_penalty=penalty))
    for row, ids, frequencies in zip(logits, SEEN, found, strict=True):
        scores: Any = row[None]
        if penalty != 1:
            scores = RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor([ids]), scores)  # type: ignore[arg-type]
        scores = TemperatureLogitsWarper(0.7)(None, scores)  # type: ignore[arg-type]
        if min_p:
            scores = MinPLogitsWarper(min_p)(None, scores)  # type: ignore[arg-type]
        expected = scores.softmax(-1)[0]
        assert not frequencies[expected == 0].any()
        assert torch.allclose(frequencies, expected, atol=0.03)


def test_a_greedy_turn_has_the_penalty_too() -> None:
    logits = torch.tensor([[2.0, 1.9, -1.0]])
    greedy = replace(PLAIN, temperature=0.0, repetition_penalty=1.2)
    assert draw(
        logits,
        greedy,
        [Random(0)],
        [[0]],
    )[0].tolist() == [1]
    assert draw(
        logits,
        greedy,
        [Random(0)],
        [[2]],
    )[0].tolist() == [0]
