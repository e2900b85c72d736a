"""Slime's custom functions of the importance correction: Slime itself has no weights of whole episodes.

The returned masks are the given ones: Slime would take masked tokens out of the KL penalty and the entropy too.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from xp.backends.slime.worker.metric_names import OF_WEIGHTS
from xp.worker.importance import Importance


def _weigh(
    correction: str,
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
        correction: a spec's `algorithm.importance_correction`.
        args: Slime's arguments; `tis_clip_low` and `tis_clip` are the bounds.
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

    rule = Importance(correction, args.tis_clip_low, args.tis_clip)
    weights, columns = [], []
    for old, written, mask, *lengths in zip(
        train_log_probs, rollout_log_probs, loss_masks, total_lengths, response_lengths, strict=True
    ):
        weighed = rule.weigh(all_gather_with_cp(old - written, *lengths), mask)
        weights.append(slice_log_prob_with_cp(weighed.weights, *lengths))
        scale = 1 if args.calculate_per_token_loss else mask.sum()
        columns.append([slice_log_prob_with_cp(column * scale, *lengths) for column in weighed.columns()])
    names = (name.removeprefix("train/") for name in OF_WEIGHTS)
    return (
        pg_loss * torch.cat(weights),
        loss_masks,
        dict(zip(names, map(torch.cat, zip(*columns, strict=True)), strict=True)),
    )


token_truncate = partial(_weigh, "token_truncate")
sequence_truncate = partial(_weigh, "sequence_truncate")
token_mask = partial(_weigh, "token_mask")
sequence_mask = partial(_weigh, "sequence_mask")
geometric_mask = partial(_weigh, "geometric_mask")
