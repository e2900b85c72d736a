"""How Slime sees a spec: what several of its columns share."""

from __future__ import annotations

from xp.fields.field import Native
from xp.spec import Estimator, PolicyLoss, RatioLevel, RunSpec, Sft, Training
from xp.worker.learning_rate import first_rate

SLIME_ADVANTAGES = "xp.backends.slime.worker.advantages"


def native_estimator(spec: RunSpec) -> str:
    """Slime's estimator, which selects the loss; gspo and cispo pass on xp's advantages, like grpo."""
    algorithm = spec.algorithm
    if algorithm.estimator is Estimator.GAE:
        return "ppo"
    if algorithm.policy_loss is PolicyLoss.CISPO:
        return "cispo"
    if algorithm.ratio_level is RatioLevel.SEQUENCE:
        return "gspo"
    return "grpo"


def sequence_length(spec: RunSpec, longest: int) -> int:
    """Tokens of the longest episode, rounded up to a length that context parallelism can split."""
    step = 2 * spec.backend.parallel.context
    return -(-longest // step) * step


def micro_batch(section: Training | Sft) -> Native:
    """Flag of the micro-batch; Megatron also uses it if micro-batches are packed, and 1 divides every number."""
    return {
        "--micro-batch-size": section.micro_batch_size
        if section.max_tokens_per_micro_batch is None
        else 1
    }


def packing(section: Training | Sft) -> Native:
    """Flags that pack episodes by their tokens, if they are not counted."""
    most = section.max_tokens_per_micro_batch
    return {
        "--use-dynamic-batch-size": most is not None,
        "--max-tokens-per-gpu": most,
        "--log-probs-max-tokens-per-gpu": most,
    }


def warmup_flags(section: Training | Sft) -> Native:
    """Flags of the warm-up. Source: megatron/core/optimizer_param_scheduler.py `get_lr`: --lr-warmup-init is the rate
    of the first update."""
    updates = section.warmup_updates
    start = first_rate(section.learning_rate, updates)
    return {"--lr-warmup-iters": max(updates - 1, 0), "--lr-warmup-init": start}
