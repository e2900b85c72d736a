"""Result of a trainer, or of the reference, for the batch; the watch on a trainer's optimizer that collects it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

Weights = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Found:
    """All updates of one rollout step."""

    advantages: list[float]
    """One per episode, or with a critic or a teacher one per trained token. A critic's own: the returns that it
    learns."""
    losses: list[float]
    """One per update, as the trainer differentiates it."""
    gradients: list[Weights]
    """One per update, as the optimizer takes it."""
    parameters: list[Weights]
    """After each update."""
    start: Weights
    members: list[list[int]]
    """Episodes of each update, by their place in the batch."""
    sizes: list[float] = field(default_factory=list)
    """One per update: the sum of the absolute parts of its loss, which nearly cancel; of the reference alone."""
    rates: list[float] = field(default_factory=list)
    """Learning rate of each update, as the optimizer has it."""
    reported: dict[str, float] = field(default_factory=dict)
    """Metrics of the step by xp's names, a mean over the updates each."""
    critic: Found | None = None
    """Updates of the critic; None: there is none."""


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """A copy in float64; a sharded tensor is gathered."""
    if hasattr(tensor, "full_tensor"):
        tensor = tensor.full_tensor()
    else:
        tensor = tensor
    return tensor.detach().to(torch.float64).clone()


@contextmanager
def watched(
    found: Found, parameters: Callable[[], dict[str, Any]], only: Any = None
) -> Iterator[None]:
    """Collects gradients and parameters at each step of a torch optimizer.

    Args:
        found: what is filled.
        parameters: of the trained model, by the names that the model has in its own files.
        only: the optimizer that is watched; None: any.
    """
    from torch.optim.optimizer import (
        register_optimizer_step_post_hook,
        register_optimizer_step_pre_hook,
    )

    def before(optimizer: Any, *_: Any) -> None:
        if only is not None and optimizer is not only:
            return
        found.rates.append(float(optimizer.param_groups[0]["lr"]))
        found.gradients.append(
            {name: whole(p.grad) for name, p in parameters().items() if p.grad is not None}
        )

    def after(optimizer: Any, *_: Any) -> None:
        if only is not None and optimizer is not only:
            return
        found.parameters.append({name: whole(p) for name, p in parameters().items()})

    hooks = [register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
