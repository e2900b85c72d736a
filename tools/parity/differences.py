"""Differences of a trainer's updates from the reference's, each relative to the reference."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tools.parity.found import Found, Weights


@dataclass(frozen=True)
class Differences:
    """Relative differences; 0 is the same."""

    advantages: float
    loss: float
    """The largest of the updates', relative to the sum of the loss's absolute parts."""
    gradient: float
    """The largest of the updates', over all parameters together."""
    worst_gradient: float
    """Difference of the parameter that differs most, in the first update."""
    learning_rate: float
    """The largest of the updates'."""
    first_update: float
    """Difference of the change of all parameters by the first update."""
    all_updates: float
    """Difference of the change of all parameters by all updates."""

    @property
    def largest(self) -> float:
        return float(max(vars(self).values()))


def differences(found: Found, wanted: Found) -> Differences:
    """Raises ValueError where the two do not have the same updates and parameters."""
    counts = [(len(one.gradients), len(one.parameters), len(one.losses)) for one in (found, wanted)]
    if counts[0] != counts[1]:
        raise ValueError(
            f"(gradients, parameters, losses) of {counts[0]} updates; the reference has {counts[1]}"
        )
    own, theirs = (torch.tensor(one.advantages, dtype=torch.float64) for one in (found, wanted))
    pairs = list(zip(found.gradients, wanted.gradients, strict=True))
    return Differences(
        advantages=_relative(own - theirs, theirs),
        loss=max(
            abs(a - b) / size
            for a, b, size in zip(found.losses, wanted.losses, wanted.sizes, strict=True)
        ),
        gradient=max(_of_all(one, other) for one, other in pairs),
        worst_gradient=max(
            _of_all({name: one}, {name: pairs[0][1][name]}) for name, one in pairs[0][0].items()
        ),
        learning_rate=max(abs(a - b) / b for a, b in zip(found.rates, wanted.rates, strict=True)),
        first_update=_of_all(_change(found, 0), _change(wanted, 0)),
        all_updates=_of_all(_change(found, -1), _change(wanted, -1)),
    )


def _change(found: Found, update: int) -> Weights:
    return {name: weight - found.start[name] for name, weight in found.parameters[update].items()}


def _of_all(found: Weights, wanted: Weights) -> float:
    if found.keys() != wanted.keys():
        raise ValueError(
            f"parameters that only one of the two has: {sorted(found.keys() ^ wanted.keys())}"
        )
    gaps = torch.cat([(found[name] - wanted[name]).flatten() for name in wanted])
    return _relative(gaps, torch.cat([wanted[name].flatten() for name in wanted]))


def _relative(gap: torch.Tensor, whole: torch.Tensor) -> float:
    # Adapters begin with a product of 0, so that one factor's first gradient is exactly 0.
    if bool(whole.any()):
        return float(gap.norm() / whole.norm())
    return float(gap.norm())
