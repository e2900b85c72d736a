"""Corrects GRPOTrainer's means over an optimizer update to the spec's.

TRL 1.16.0 divides `token_mean` by the mean number of tokens of a step's updates, not by the update's own number;
`sequence_mean` and `constant` count an episode without trained tokens as one of loss zero; the entropy is a mean over
micro-batches. The update's own counts, passed to the loss by TRL's factors, correct all four. TRL's metrics are means
over micro-batches; `weigh_metrics` makes them means over the update's tokens. TRL adds 1e-4 to the standard deviation
of rewards, the other trainers 1e-6; `rescaled` corrects this.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from xp.lib.patching import replaced

TRLS_EPSILON = 1e-4
EPSILON = 1e-6
OVER_TOKENS = ("kl", "entropy", "clip_ratio/region_mean", "cispo_clip_ratio")
"""TRL's metrics that are means over the trained tokens of a micro-batch."""


@dataclass(frozen=True)
class Counts:
    """Numbers of trained tokens of an update, and of episodes with any, over all ranks."""

    tokens: float
    episodes: float
    of_parts: Sequence[float]
    """Trained tokens of each micro-batch, or of each part of one (`row_parts`)."""


SHARE = "xp_share"
"""Key of each row's share in the trained tokens of its episode."""


def trained(inputs: Any) -> torch.Tensor:
    """Mask of the trained tokens of a micro-batch."""
    mask: torch.Tensor = inputs["completion_mask"] * inputs.get("tool_mask", 1)
    return mask


def shares(inputs: Any, episodes: Sequence[int]) -> torch.Tensor:
    """Share of each row in the trained tokens of its episode.

    Args:
        inputs: all rows of this process.
        episodes: number of each row's episode.
    """
    tokens = trained(inputs).sum(1).double()
    numbers = torch.tensor(episodes, device=inputs["completion_mask"].device)
    return tokens / torch.zeros_like(tokens).index_add(0, numbers, tokens)[numbers].clamp(min=1)


def row_parts(inputs: dict[str, Any], size: int) -> list[dict[str, Any]]:
    """A micro-batch in parts of at most this number of rows; one, if no episode has several rows."""
    num_rows = len(inputs["completion_mask"])
    if num_rows <= size:
        return [inputs]
    return [
        {
            key: value[start : start + size]
            if getattr(value, "ndim", 0) or isinstance(value, list)
            else value
            for key, value in inputs.items()
        }
        for start in range(0, num_rows, size)
    ]


def update_counts(trainer: Any) -> Counts:
    """Counts tokens and episodes of the update whose first micro-batch is next; all ranks must call it."""
    accumulated = trainer.args.gradient_accumulation_steps
    first = trainer._step % trainer.args.steps_per_generation
    size = trainer.args.per_device_train_batch_size
    buffered = trainer._buffered_inputs[first : first + accumulated]
    parts = [part for inputs in buffered for part in row_parts(inputs, size)]
    counts = torch.stack(
        [torch.stack([trained(part).sum(), part[SHARE].sum()]) for part in parts]
    ).float()
    counts = trainer.accelerator.reduce(counts, reduction="sum")
    tokens, episodes = counts.sum(0).clamp(min=1).tolist()
    return Counts(tokens, episodes, counts[:, 0].tolist())


def weigh_metrics(trainer: Any, counts: Counts, part: int) -> None:
    """Weighs the metrics of a part, so that TRL's mean over the parts is one over the update's tokens.

    With a ratio of an episode, TRL's clip ratio is a share of episodes, void ones included.
    """
    weight = counts.of_parts[part] * len(counts.of_parts) / counts.tokens
    is_of_episodes = trainer.importance_sampling_level == "sequence"
    for name in OVER_TOKENS[: 2 if is_of_episodes else None]:
        values = trainer._metrics["train"].get(name)
        if values:
            values[-1] *= weight


@contextmanager
def update_means(
    trainer: Any, inputs: dict[str, Any], counts: Counts, loss_length: int | None
) -> Iterator[dict[str, Any]]:
    """Context manager: GRPOTrainer's loss of these inputs is their part of the means over the whole update.

    Args:
        trainer: the trainer; its factors are changed, and restored.
        inputs: inputs of a micro-batch.
        counts: counts of its update.
        loss_length: tokens by which `constant` divides. None means TRL's max_completion_length.
    """
    mask = trained(inputs)
    args = trainer.args
    ranks = trainer.accelerator.num_processes
    divisor = counts.episodes / (len(mask) * ranks)
    share = float(mask.sum().clamp(min=1)) / counts.tokens
    factors = {
        "current_gradient_accumulation_steps": divisor,
        "entropy_coef": trainer.entropy_coef * share * divisor * ranks,
        "max_completion_length": loss_length or trainer.max_completion_length,
    }
    # TRL multiplies by the accumulated share of the step, and divides by the number of processes.
    items = counts.tokens * args.steps_per_generation / divisor
    with replaced(trainer, **factors):
        yield {**inputs, "num_items_in_batch": torch.tensor(items, device=mask.device)}


def rescaled(
    advantages: torch.Tensor, rewards: torch.Tensor, share: slice, group_size: int, scale: str
) -> torch.Tensor:
    """TRL's advantages, converted to a division by the standard deviation plus `EPSILON`.

    Args:
        advantages: advantages of this rank's episodes.
        rewards: rewards of all ranks' episodes; NaN: void.
        share: this rank's part of them.
        group_size: number of episodes of a group.
        scale: value of `scale_rewards`.
    """
    from trl.trainer.utils import nanstd

    if scale == "none":
        return advantages
    deviations = nanstd(rewards.view(-1, group_size), dim=1).repeat_interleave(group_size)[share]
    return advantages * torch.nan_to_num(
        (deviations + TRLS_EPSILON) / (deviations + EPSILON), nan=1.0
    )
