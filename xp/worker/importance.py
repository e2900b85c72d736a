"""Weights for the gap between the log-probabilities of the engine and of the trainer: one formula for all trainers.

A trainer with a key for the same weights applies them itself; their metrics are computed here for all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from xp.spec import Algorithm, ImportanceCorrection, ImportanceMask

OUTSIDE = "training/importance_outside"
SAMPLE_SIZE = "training/importance_sample_size"
METRICS = (OUTSIDE, SAMPLE_SIZE)
LEVELS: Final = {
    ImportanceCorrection.NONE: "none",
    ImportanceCorrection.TOKEN_TRUNCATE: "token",
    ImportanceCorrection.SEQUENCE_TRUNCATE: "sequence",
}
"""Level of the ratio whose truncation is the weight."""


class TokenColumns(NamedTuple):
    """Values of each token; the sums over the trained tokens, in this order, are the argument of `metrics`."""

    is_trained: Any
    is_outside: Any
    weights: Any
    squared_weights: Any


@dataclass(frozen=True)
class ImportanceWeights:
    """Results for a batch; each is a tensor shaped as the gap, without a gradient."""

    is_trained: Any
    weights: Any
    """Factors of the policy loss, which do not change the KL penalty, the entropy and the divisors of means."""
    is_outside: Any
    """1 where the ratio is beyond a bound."""

    def columns(self) -> TokenColumns:
        return TokenColumns(self.is_trained, self.is_outside, self.weights, self.weights.square())

    def sums(self) -> list[Any]:
        """The sums of `columns` over the trained tokens."""
        return [(column.double() * self.is_trained).sum() for column in self.columns()]


def weigh(algorithm: Algorithm, gap: Any, mask: Any) -> ImportanceWeights:
    """Weights of the tokens by a spec's `importance_correction`, and 0 for those that its `importance_mask` leaves out.

    Args:
        algorithm: the spec's.
        gap: (..., tokens), the trainer's log-probabilities before the update minus the engine's; NaN, where the engine
            gave none, counts as 0.
        mask: the same shape, above 0 for trained tokens.
    """
    is_trained = mask > 0

    gap = gap.detach().masked_fill(~is_trained, 0.0).nan_to_num(nan=0.0)
    ratio = _ratio(gap, is_trained, algorithm.importance_mask)
    is_left_out = (ratio < algorithm.mask_lower) | (ratio > algorithm.mask_upper)
    if algorithm.importance_mask is ImportanceMask.TOKEN:
        # SkyRL's order: the product over an episode is of the tokens that are left.
        gap = gap.masked_fill(is_left_out, 0.0)
    ratio = _ratio(gap, is_trained, LEVELS[algorithm.importance_correction])
    lower = algorithm.importance_lower
    upper = algorithm.importance_upper
    weights = ratio.clamp(lower, upper).masked_fill(is_left_out, 0.0)
    is_outside = is_left_out | (ratio < lower) | (ratio > upper)
    return ImportanceWeights(is_trained.to(ratio.dtype), weights, is_outside.to(ratio.dtype))


def _ratio(gap: Any, is_trained: Any, level: str) -> Any:
    """Ratio of a token, or the product or geometric mean of its episode's; 1 for the level `none`."""
    if level == "none":
        return gap.new_ones(gap.shape)
    if level != "token":
        if level == "geometric":
            num_tokens = is_trained.sum(-1, keepdim=True).clamp(min=1)
        else:
            num_tokens = 1
        gap = (gap.sum(-1, keepdim=True) / num_tokens).expand_as(gap)
    return gap.exp()


def metrics(sums: Sequence[Any]) -> dict[str, float]:
    """Share of the trained tokens beyond a bound, and the effective sample size as a share of them.

    Args:
        sums: of `TokenColumns` over the trained tokens; all may have one common factor.
    """
    num_tokens, outside, total, squares = map(float, sums)
    if not num_tokens:
        return {}
    return {
        OUTSIDE: outside / num_tokens,
        SAMPLE_SIZE: total**2 / (num_tokens * squares) if squares else 0.0,
    }
