"""AdamW (arXiv:1711.05101) with a clipped gradient and xp's schedules, as the reference makes an update."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from tools.parity.found import Found
from tools.parity.recorded import UpdateRule
from xp.worker.learning_rate import learning_rate_factor


class AdamW:
    """All updates of one network.

    Args:
        rule: its rates and bounds.
        weights: what is trained, with gradients once `step` is called.
        num_updates: of the run, for the schedule.
    """

    def __init__(self, rule: UpdateRule, weights: Mapping[str, Any], num_updates: int) -> None:
        self._rule = rule
        self._weights = weights
        self._num_updates = num_updates
        self._moments: dict[str, tuple[Any, Any]] = {}
        self._update = 0

    def update(self, terms: Any, found: Found) -> float:
        """Differentiates the sum of a loss's terms and makes a step; `found` gets what belongs to the update.

        Returns:
            The gradient's norm before it is clipped.
        """
        for weight in self._weights.values():
            weight.grad = None
        loss = terms.sum()
        loss.backward()
        norm = float(norm_of(self._weights))
        found.losses.append(loss.item())
        found.sizes.append(terms.abs().sum().item())
        found.rates.append(rate_of(self._rule, self._update, self._num_updates))
        found.gradients.append(
            self._step(min(1.0, self._rule.max_grad_norm / norm), found.rates[-1])
        )
        found.parameters.append(
            {name: weight.detach().clone() for name, weight in self._weights.items()}
        )
        self._update += 1
        return norm

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def _step(self, cut: float, rate: float) -> dict[str, torch.Tensor]:
        """One step along the gradient times `cut`; gives back that gradient."""
        rule = self._rule
        number = self._update + 1
        named = {name: weight for name, weight in self._weights.items() if weight.grad is not None}
        gradients = {name: weight.grad * cut for name, weight in named.items()}
        for name, weight in named.items():
            mean, square = self._moments.get(
                name, (torch.zeros_like(weight), torch.zeros_like(weight))
            )
            mean = rule.adam_beta1 * mean + (1 - rule.adam_beta1) * gradients[name]
            square = rule.adam_beta2 * square + (1 - rule.adam_beta2) * gradients[name].square()
            self._moments[name] = mean, square
            step = mean / (1 - rule.adam_beta1**number)
            root = (square / (1 - rule.adam_beta2**number)).sqrt()
            weight.mul_(1 - rate * rule.weight_decay).sub_(rate * step / (root + rule.adam_eps))
        return gradients


def norm_of(weights: Mapping[str, Any]) -> torch.Tensor:
    """Euclidean norm of the whole gradient."""
    squares = [weight.grad.square().sum() for weight in weights.values() if weight.grad is not None]
    return torch.stack(squares).sum().sqrt()


def rate_of(rule: UpdateRule, update: int, num_updates: int) -> float:
    """Learning rate of an update, from 0."""
    return rule.learning_rate * learning_rate_factor(
        rule.lr_schedule, rule.warmup_updates, num_updates, update
    )
