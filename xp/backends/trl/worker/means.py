"""Means over an optimizer update: what GRPOTrainer divides by, and what the spec means.

TRL 1.16.0 divides `token_mean` by the mean number of tokens of a step's updates, not by the update's own;
`sequence_mean` and `constant` count an episode without trained tokens as one of loss zero; the entropy is a mean of
micro-batches. An update's own counts, given to the loss through TRL's own factors, make all four the spec's.
TRL adds 1e-4 to the standard deviation of rewards, the other trainers 1e-6; `rescaled` makes it the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

TRLS_EPSILON = 1e-4
EPSILON = 1e-6


@dataclass(frozen=True)
class Counts:
    """Trained tokens of an update, and episodes that have any, over all ranks."""

    tokens: float
    episodes: float


def trained(inputs: Any) -> torch.Tensor:
    """Mask of the tokens that a micro-batch is trained on."""
    mask: torch.Tensor = inputs["completion_mask"] * inputs.get("tool_mask", 1)
    return mask


def update_counts(trainer: Any) -> Counts:
    """Counts the tokens and episodes of the update whose first micro-batch is next; all ranks must call it."""
    accumulated = trainer.args.gradient_accumulation_steps
    first = trainer._step % trainer.args.steps_per_generation
    masks = [trained(inputs) for inputs in trainer._buffered_inputs[first : first + accumulated]]
    own = torch.stack([torch.stack([mask.sum(), (mask.sum(-1) > 0).sum()]) for mask in masks]).sum(0).float()
    tokens, episodes = trainer.accelerator.reduce(own, reduction="sum").clamp(min=1).tolist()
    return Counts(tokens, episodes)


@contextmanager
def own_means(trainer: Any, inputs: dict[str, Any], counts: Counts) -> Iterator[dict[str, Any]]:
    """Within, GRPOTrainer's loss of these inputs is their part of the means over the whole update.

    Args:
        trainer: its factors are changed, and restored.
        inputs: of a micro-batch.
        counts: of its update.
    """
    mask, args, ranks = trained(inputs), trainer.args, trainer.accelerator.num_processes
    accumulated, coefficient = trainer.current_gradient_accumulation_steps, trainer.entropy_coef
    divisor = counts.episodes / (len(mask) * ranks)
    trainer.current_gradient_accumulation_steps = divisor
    trainer.entropy_coef = coefficient * float(mask.sum().clamp(min=1)) * divisor * ranks / counts.tokens
    # TRL multiplies it by the share of the step that is accumulated, and divides it by the number of processes.
    items = counts.tokens * args.steps_per_generation / divisor
    try:
        yield {**inputs, "num_items_in_batch": torch.tensor(items, device=mask.device)}
    finally:
        trainer.current_gradient_accumulation_steps, trainer.entropy_coef = accumulated, coefficient


def rescaled(advantages: torch.Tensor, rewards: torch.Tensor, own: slice, group_size: int, scale: str) -> torch.Tensor:
    """TRL's advantages, as if they were divided by the standard deviation and `EPSILON`.

    Args:
        advantages: of this rank's episodes.
        rewards: of all ranks' episodes; nan is void.
        own: this rank's part of them.
        group_size: episodes in a group.
        scale: `scale_rewards`.
    """
    from trl.trainer.utils import nanstd

    if scale == "none":
        return advantages
    groups = rewards.view(1, -1) if scale == "batch" else rewards.view(-1, group_size)
    deviations = nanstd(groups, dim=1).repeat_interleave(groups.shape[1])[own]
    return advantages * torch.nan_to_num((deviations + TRLS_EPSILON) / (deviations + EPSILON), nan=1.0)
