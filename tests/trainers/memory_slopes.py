"""Slopes of the peak memory of a trainer's update over tokens and vocabulary, measured in a process of its own."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cache

from tools.benchmarks.bench_memory import points_of
from tools.benchmarks.memory_points import HIDDEN, TOKENS, VOCABULARIES
from xp.composition import compose
from xp.planning.backend import MemoryUse, backend_of


@dataclass(frozen=True)
class Slopes:
    """Growth of a peak in bytes."""

    logit: float
    """With each logit of the micro-batch: of the slope over tokens, what grows with the vocabulary."""
    word: float
    """With each word of the vocabulary, at the larger number of tokens."""


@cache
def measured(backend: str) -> dict[str, Slopes]:
    """Path of the loss -> slopes, by the trainer of this interpreter; no constant of the planner is used."""
    found = {}
    for path, points in points_of(backend, sys.executable, {}).items():
        peaks = {(one["vocabulary"], one["tokens"]): one["peak"] for one in points}
        (small, large) = VOCABULARIES
        (few, many) = TOKENS
        growth = {tokens: peaks[large, tokens] - peaks[small, tokens] for tokens in TOKENS}
        words = large - small
        found[path] = Slopes(
            (growth[many] - growth[few]) / (many - few) / words, growth[many] / words
        )
    print(found)
    return found


def planned(*overrides: str) -> MemoryUse:
    """The planner's constants."""
    spec = compose(overrides)
    return backend_of(spec).memory(spec)


def word_bytes(logit_bytes: float, head_bytes: float) -> float:
    """Bytes of a word of the vocabulary as the plan counts them, at the larger number of tokens."""
    return logit_bytes * max(TOKENS) + head_bytes * HIDDEN
