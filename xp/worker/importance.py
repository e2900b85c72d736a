"""Weights for the gap between the log-probabilities of the engine and of the trainer: one formula for all trainers.

A trainer with a key for the same weights applies them itself; their metrics are computed here for all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

OUTSIDE, SAMPLE_SIZE = METRICS = "training/importance_outside", "training/importance_sample_size"


@dataclass(frozen=True)
class ImportanceWeights:
    """Results for a batch; each is a tensor shaped as the gap, without a gradient."""

    is_trained: Any
    weights: Any
    """Factors of the policy loss, which do not change the KL penalty, the entropy and the divisors of means."""
    is_outside: Any
    """1 where the ratio is beyond a bound."""

    def columns(self) -> tuple[Any, ...]:
        """Values of each token whose sums over the trained tokens are the argument of `metrics`."""
        return self.is_trained, self.is_outside, self.weights, self.weights.square()

    def sums(self) -> list[Any]:
        """The sums of `columns` over the trained tokens."""
        return [(column.double() * self.is_trained).sum() for column in self.columns()]


@dataclass(frozen=True)
class Importance:
    """A spec's `algorithm.importance_correction` and its bounds."""

    correction: str
    lower: float
    upper: float
    is_native: bool = False
    """True if the trainer itself multiplies the loss by the weights."""

    def weigh(self, gap: Any, mask: Any) -> ImportanceWeights:
        """Weights of the tokens.

        Args:
            gap: (..., tokens), the trainer's log-probabilities before the update minus the engine's; NaN, where the
                engine gave none, counts as 0.
            mask: the same shape, above 0 for trained tokens.
        """
        is_trained, level = mask > 0, self.correction.partition("_")[0]
        gap = gap.detach().masked_fill(~is_trained, 0.0).nan_to_num(nan=0.0)
        if level != "token":
            num_tokens = is_trained.sum(-1, keepdim=True).clamp(min=1) if level == "geometric" else 1
            gap = (gap.sum(-1, keepdim=True) / num_tokens).expand_as(gap)
        ratio = gap.exp()
        is_outside = (ratio < self.lower) | (ratio > self.upper)
        if self.correction.endswith("truncate"):
            weights = ratio.clamp(self.lower, self.upper)
        else:
            weights = (ratio if level != "geometric" else ratio.new_ones(())).expand_as(ratio)
            weights = weights.masked_fill(is_outside, 0.0)
        return ImportanceWeights(is_trained.to(ratio.dtype), weights, is_outside.to(ratio.dtype))


def metrics(sums: Sequence[Any]) -> dict[str, float]:
    """Share of the trained tokens beyond a bound, and the effective sample size as a share of them.

    Args:
        sums: over the trained tokens: their number, those beyond a bound, the weights, and the squared weights; all may
            have one common factor.
    """
    num_tokens, outside, total, squares = map(float, sums)
    if not num_tokens:
        return {}
    return {OUTSIDE: outside / num_tokens, SAMPLE_SIZE: total**2 / (num_tokens * squares) if squares else 0.0}
