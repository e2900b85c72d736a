"""Tokens of a run on a service, and their price, for the plan."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from xp.contrib.tinker.columns import needs_forward
from xp.planning.memory.lengths import EpisodeLengths, at_limit, expected
from xp.planning.run_size import evaluation_episodes, expected_steps
from xp.spec import RunSpec
from xp.spec.place import TokenPrices


def plan_lines(spec: RunSpec, outputs: Path | None) -> Iterator[str]:
    """Lines of the plan about the tokens that a service counts."""
    steps = expected_steps(spec)
    if steps is None:
        return
    lengths = expected(spec, outputs), at_limit(spec)
    low, high = (tokens(spec, steps, length) for length in lengths)
    parts = zip(TokenPrices.model_fields, low, high, strict=True)
    amounts = ", ".join(f"{name} {_millions(a)} to {_millions(b)}" for name, a, b in parts)
    yield f"tokens of the run, in millions: {amounts} ({lengths[0].source}; to every episode at its limit)"
    prices = spec.hardware.usd_per_million_tokens
    if prices is None:
        yield "price: unknown; set hardware.usd_per_million_tokens={prompt: N, sampled: N, trained: N}"
        return
    yield f"price: {prices.usd(*low):.2f} to {prices.usd(*high):.2f} USD"


def tokens(spec: RunSpec, steps: int, lengths: EpisodeLengths) -> tuple[float, float, float]:
    """Tokens that are read by sampling and forward passes, sampled, and trained on.

    An episode is read once: a service that bills each turn's prompt without a cache reads more.
    """
    training = spec.training
    played = steps * training.episodes_per_step
    response = min(lengths.mean, training.max_response_tokens)
    episodes = played + (evaluation_episodes(spec) or 0)
    passes = training.passes_per_step
    forward = played * lengths.mean * needs_forward(spec)
    return episodes * lengths.mean + forward, episodes * response, played * passes * lengths.mean


def _millions(number: float) -> str:
    return f"{number / 1e6:.3g}"
