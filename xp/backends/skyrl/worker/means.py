"""Averages the KL penalty and the entropy bonus like the policy loss, over an optimizer update.

SkyRL 0.3.0 (PolicyWorkerBase._forward_backward_micro) averages the penalty over the token means of episodes, including
void ones, and the bonus over micro-batches. Both use its `masked_mean`, whose result it multiplies by a micro-batch's
share of the episodes, and adds up.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from skyrl.backends.skyrl_train.workers import worker


@contextmanager
def own_means(loss_mask: torch.Tensor, settings: Any, group: Any) -> Iterator[None]:
    """Context manager for a policy worker's forward and backward passes of an update with these masks.

    Args:
        loss_mask: (episodes, tokens), for this rank's episodes.
        settings: SkyRL's AlgorithmConfig.
        group: process group of the update's ranks.
    """
    own = torch.stack([loss_mask.sum(), (loss_mask.sum(-1) > 0).sum()]).double()
    torch.distributed.all_reduce(own, group=group)
    num_tokens, num_episodes = own.clamp(min=1).tolist()
    # SkyRL's gradient is the mean over the ranks.
    scale = len(loss_mask) * torch.distributed.get_world_size(group)

    def masked_mean(values: torch.Tensor, mask: torch.Tensor, dim: int | None = None) -> torch.Tensor:
        if dim is None:
            return (values * mask).sum() * scale / num_tokens / len(mask)
        if settings.loss_reduction == "sequence_mean":
            mask = mask / mask.sum(dim, keepdim=True).clamp(min=1)
        divisor = {
            "token_mean": num_tokens,
            "sequence_mean": num_episodes,
            "seq_mean_token_sum_norm": num_episodes * (settings.max_seq_len or 1),
        }[settings.loss_reduction]
        return (values * mask).sum(dim) * scale / divisor

    theirs, worker.masked_mean = worker.masked_mean, masked_mean
    try:
        yield
    finally:
        worker.masked_mean = theirs
