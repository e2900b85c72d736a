"""Data of the service's requests: tokens, old log-probabilities, and advantages that make the spec's mean of its own.

The service's losses are linear in the advantages, so that a factor of a datum's advantages is one of its loss.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from xp.contrib.tinker.worker.service import LossReduction
from xp.spec import Algorithm, LossAggregation


@dataclass(frozen=True)
class Row:
    """One sequence of an episode. Lists but `ids` are of the tokens after the prompt."""

    ids: list[int]
    logprobs: list[float]
    """The engine's."""
    mask: list[int]
    """1 for trained tokens."""
    episode: int
    """Number of the episode in its step."""

    @property
    def num_prompt(self) -> int:
        return len(self.ids) - len(self.mask)

    def tail(self, values: Sequence[float]) -> list[float]:
        """Values of the tokens after the prompt, of values of all tokens but the first."""
        return list(values[self.num_prompt - 1 :])


def factors(algorithm: Algorithm, length: int, rows: Sequence[Row]) -> list[float]:
    """Factor of the loss of each row's tokens in an update's mean (`algorithm.loss_aggregation`).

    Args:
        algorithm: the spec's.
        length: tokens by which `constant` divides an episode's sum.
        rows: of the update.
    """
    tokens: dict[int, int] = {}
    for row in rows:
        tokens[row.episode] = tokens.get(row.episode, 0) + sum(row.mask)
    num_episodes = sum(number > 0 for number in tokens.values())
    match algorithm.loss_aggregation:
        case LossAggregation.TOKEN_MEAN:
            return [1 / max(1, sum(tokens.values()))] * len(rows)
        case LossAggregation.SEQUENCE_MEAN:
            return [1 / max(1, num_episodes * tokens[row.episode]) for row in rows]
        case LossAggregation.CONSTANT:
            return [1 / max(1, num_episodes * length)] * len(rows)


def undone(reduction: LossReduction, lengths: Sequence[int]) -> list[float]:
    """Factors that undo the service's own mean over the data of an update, whose numbers of tokens are given."""
    if reduction is LossReduction.SUM:
        return [1.0] * len(lengths)
    return [float(len(lengths) * (length - 1)) for length in lengths]


NO_BOUNDS: Final = (0.0, float("inf"))


def token_losses(
    requests: Mapping[str, Any], logprobs: Any, old: Any, advantages: Any
) -> tuple[Any, Any]:
    """Losses of tokens by the formulas of PPO (arXiv:1707.06347) and CISPO (arXiv:2506.13585), and whether the ratio is
    beyond a bound on the side where it is cut.

    Args:
        requests: arguments of the requests: the loss and its bounds.
        logprobs, old, advantages: of the same tokens.
    """
    import torch

    ratio = (logprobs - old).exp()
    name = requests["loss_fn"]
    low, high = tuple(bounds(requests).values()) or NO_BOUNDS
    cut = ratio.clamp(low, high)
    if name == "cispo":
        return -(cut * logprobs * advantages), cut != ratio
    losses = -torch.minimum(ratio * advantages, cut * advantages)
    return losses, (cut != ratio) & (losses != -(ratio * advantages))


def bounds(requests: Mapping[str, Any]) -> dict[str, float]:
    """`loss_fn_config` of a request; empty for a loss without bounds."""
    if requests["loss_fn"] == "importance_sampling":
        return {}
    return {name: float(requests[name]) for name in ("clip_low_threshold", "clip_high_threshold")}
