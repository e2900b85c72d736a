"""Corrects an update's mean to the episodes that are trained on, since Slime's also counts excluded ones.

Slime counts a row without a trained token (void, or excluded as truncated) as one token in its token mean, and such an
episode as one of loss zero in its sequence mean. The loss of each update is multiplied by a correction factor where
Megatron begins its backward pass, so that gradient, clipping and update are those of a batch without such episodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from xp.backends.slime.worker.config import WORKER_ATTRIBUTE, WorkerConfig, config_at
from xp.episode.advantages import DISTILL_KL
from xp.spec import LossAggregation

_factors: list[float] = []
"""Factor of each update of the step in this process; a process has one role."""
_constants: list[float] = []
"""Factor of each update from the mean over its tokens to the sum over them / (episodes x `loss_length`)."""
_distilled: dict[str, float] = {}
"""Metric of the step's distillation in this process."""


def count(args: Any, rollout_id: int, rollout_data: Mapping[str, Any]) -> None:
    """Slime's rollout data post-processing in the policy's processes, before the step's first update.

    Args:
        args: Slime's arguments; `calculate_per_token_loss` selects the mean.
        rollout_id: id of the step.
        rollout_data: this rank's share: `loss_masks` [response] each, `rollout_mask_sums` (trained tokens of each one's
            episode), `micro_batch_indices`, `num_microbatches` (one per update) and `global_batch_sizes` (episodes per
            update over all ranks).
    """
    del rollout_id
    import torch
    from megatron.core import mpu

    sizes = torch.stack([mask.sum() for mask in rollout_data["loss_masks"]]).double()
    # The share of a row in its episode, whose rows may be on several ranks.
    shares = sizes / torch.as_tensor(rollout_data["rollout_mask_sums"]).to(sizes).clamp(min=1)
    updates = []
    begin = 0
    for number in rollout_data["num_microbatches"]:
        chosen = [
            at
            for batch in rollout_data["micro_batch_indices"][begin : begin + number]
            for at in batch
        ]
        begin += number
        updates.append(
            torch.stack([sizes[chosen].sum(), (sizes[chosen] == 0).sum(), shares[chosen].sum()])
        )
    counts = torch.stack(updates)
    torch.distributed.all_reduce(
        counts, group=mpu.get_data_parallel_group(with_context_parallel=False)
    )
    tokens, _, episodes = counts.T.tolist()
    length = constant_length(config_at(getattr(args, WORKER_ATTRIBUTE)))
    if args.calculate_per_token_loss:
        whole = counts[:, :2].sum(1).tolist()
        trained = tokens
    else:
        whole = rollout_data["global_batch_sizes"]
        trained = episodes
    gap = _gap(args, rollout_data)
    if gap is not None:
        _distilled[DISTILL_KL] = gap
    _factors[:] = [
        total / count if count else 1.0 for total, count in zip(whole, trained, strict=True)
    ]
    _constants[:] = [
        num_tokens / (num_episodes * length) if num_episodes and length else 1.0
        for num_tokens, num_episodes in zip(tokens, episodes, strict=True)
    ]


def constant_length(config: WorkerConfig) -> int | None:
    """Tokens by which an episode's sum is divided. None means that the loss is a mean."""
    spec = config.spec
    if config.stage != "train" or spec.algorithm.loss_aggregation is not LossAggregation.CONSTANT:
        return None
    return spec.algorithm.loss_length or spec.training.max_response_tokens


def _gap(args: Any, rollout_data: Mapping[str, Any]) -> float | None:
    """Mean of the policy's gap to the teacher over the step's trained tokens. None means that there is no teacher, or
    another pipeline stage has the gap."""
    import torch
    from megatron.core import mpu
    from slime.backends.megatron_utils.cp_utils import slice_log_prob_with_cp

    gaps = rollout_data.get("opd_reverse_kl") if args.use_opd else None
    if gaps is None:
        return None
    lengths = zip(rollout_data["total_lengths"], rollout_data["response_lengths"], strict=True)
    parts = zip(gaps, rollout_data["loss_masks"], lengths, strict=True)
    masked = [(gap, slice_log_prob_with_cp(mask, *of_one)) for gap, mask, of_one in parts]
    parts_of_sums = [torch.stack([(gap * mask).sum(), mask.sum()]) for gap, mask in masked]
    sums = torch.stack(parts_of_sums).double().sum(0)
    torch.distributed.all_reduce(
        sums, group=mpu.get_data_parallel_group(with_context_parallel=True)
    )
    return float(sums[0] / sums[1].clamp(min=1))


def distill_kl() -> dict[str, float]:
    """The step's metric of distillation in this process; empty without a teacher."""
    return dict(_distilled)


def factor(update: int) -> float:
    """Factor from Slime's mean to the mean over trained episodes, for an update of the step (from 0); at least 1."""
    if update < len(_factors):
        return _factors[update]
    return 1.0


def loss_factor(update: int) -> float:
    """The same for the loss, which is not a mean with `algorithm.loss_aggregation=constant`."""
    return factor(update) * (_constants[update] if update < len(_constants) else 1.0)


def scale_update(
    args: Any, rollout_id: int, step_id: int, model: Any, optimizer: Any, opt_param_scheduler: Any
) -> None:
    """Slime's hook before each update: sets the factor by which Megatron multiplies the loss before the backward pass.

    Args:
        args: Slime's arguments.
        rollout_id: id of the step.
        step_id: index of the update within the step, from 0.
        model: Megatron's chunks; their configuration has the function that scales the loss.
        optimizer: the optimizer, whose own loss scale is kept.
        opt_param_scheduler: unused.
    """
    del args, rollout_id, opt_param_scheduler
    from megatron.core.utils import get_model_config

    share = loss_factor(step_id)

    def scaled(loss: Any) -> Any:
        # The auxiliary losses of experts are means over all tokens; for them the argument is a plain 1.
        return optimizer.scale_loss(loss) * (share if loss.requires_grad else 1.0)

    get_model_config(model[0]).grad_scale_func = scaled
