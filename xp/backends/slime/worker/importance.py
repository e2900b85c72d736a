"""Slime's custom function of the importance correction: Slime itself has no weights of whole episodes.

The returned masks are the given ones: Slime would take masked tokens out of the KL penalty and the entropy too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xp.backends.slime.worker.config import WORKER_ATTRIBUTE, config_at
from xp.backends.slime.worker.metric_names import OF_WEIGHTS
from xp.worker.importance import weigh


def weighed(
    args: Any,
    *,
    pg_loss: Any,
    train_log_probs: Sequence[Any],
    rollout_log_probs: Sequence[Any],
    loss_masks: Sequence[Any],
    total_lengths: Sequence[int],
    response_lengths: Sequence[int],
) -> tuple[Any, Sequence[Any], dict[str, Any]]:
    """Multiplies a micro-batch's policy loss by the weights.

    Args:
        args: Slime's arguments.
        pg_loss: [this rank's tokens of all responses].
        train_log_probs: [this rank's share of the response] of each episode, before the step's first update.
        rollout_log_probs: the engine's, in the same shapes.
        loss_masks: [response] of each episode.
        total_lengths: tokens of prompt and response of each episode.
        response_lengths: tokens of the response of each episode.

    Returns:
        The loss, the masks, and metrics of each token. In the mean over episodes, a metric counts once per token.
    """
    import torch
    from slime.backends.megatron_utils.cp_utils import all_gather_with_cp, slice_log_prob_with_cp

    algorithm = config_at(getattr(args, WORKER_ATTRIBUTE)).spec.algorithm
    weights = []
    columns = []
    for old, written, mask, *lengths in zip(
        train_log_probs, rollout_log_probs, loss_masks, total_lengths, response_lengths, strict=True
    ):
        weighed = weigh(algorithm, all_gather_with_cp(old - written, *lengths), mask)
        weights.append(slice_log_prob_with_cp(weighed.weights, *lengths))
        scale = 1 if args.calculate_per_token_loss else mask.sum()
        columns.append(
            [slice_log_prob_with_cp(column * scale, *lengths) for column in weighed.columns()]
        )
    names = (name.removeprefix("train/") for name in OF_WEIGHTS)
    return (
        pg_loss * torch.cat(weights),
        loss_masks,
        dict(zip(names, map(torch.cat, zip(*columns, strict=True)), strict=True)),
    )
