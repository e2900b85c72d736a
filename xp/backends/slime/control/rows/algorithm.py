"""Rows of the section `algorithm`."""

from __future__ import annotations

from typing import Any

from xp.backends.slime.worker.config import (
    AHEAD_TASKS,
    FRESH_TASKS,
    HAS_VARIANCE,
    OVER_TRAINED_TOKENS,
)
from xp.planning.rows import Row
from xp.planning.shared_rows import NO_MASK, is_masked, is_to_engine, mask_bounds
from xp.spec import AdvantageScale, Estimator, LossAggregation, PolicyLoss, RatioLevel, RunSpec

IMPORTANCE = "xp.backends.slime.worker.importance"
MEANS = "xp.backends.slime.worker.means"
ADVANTAGES = "xp.backends.slime.worker.advantages"


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


def _of_loss(name: str, only: PolicyLoss | RatioLevel) -> Row:
    """Row of a choice of the policy loss; Slime's `ppo` selects a critic and a loss."""
    return Row(
        f"algorithm.{name}",
        implemented_by=lambda s: f"--advantage-estimator {native_estimator(s)}",
        refuse_if=lambda s: (
            s.algorithm.estimator is Estimator.GAE and getattr(s.algorithm, name) is not only
        ),
        refuse=f"Slime's critic comes with PPO's own loss; set {only}, or use another algorithm.estimator",
    )


def _of_critic(name: str, flag: str, note: str = "") -> Row:
    """Row of a number of the critic."""
    return Row(
        f"algorithm.critic.{name}",
        lambda s: {flag: None if s.algorithm.critic is None else getattr(s.algorithm.critic, name)},
        note=note,
    )


CRITIC = (
    _of_critic("discount", "--gamma"),
    _of_critic(
        "gae_lambda",
        "--lambd",
        "Over the tokens that the policy wrote, by xp.backends.slime.worker.gae.",
    ),
    _of_critic("value_clip", "--value-clip"),
    Row(
        "algorithm.critic",
        lambda s: {
            "--num-critic-only-steps": None if s.algorithm.critic is None else 0,
            "--custom-advantage-function-path": None
            if s.algorithm.critic is None
            else OVER_TRAINED_TOKENS,
        },
    ),
)


def _distill(spec: RunSpec) -> dict[str, Any]:
    distill = spec.algorithm.distill
    if distill is None:
        kind = None
    elif distill.url is None:
        kind = "megatron"
    else:
        kind = "sglang"
    return {
        "--use-opd": bool(kind),
        "--opd-type": kind,
        "--opd-kl-coef": None if distill is None else distill.coef,
    }


DISTILL = (
    Row(
        "algorithm.distill",
        _distill,
        implemented_by=lambda s: ADVANTAGES if s.algorithm.distill is not None else "",
        note_if=lambda s: s.algorithm.distill is not None and is_to_engine(s),
        note="The policy's log-probabilities are the engine's, as in the ratio.",
        refuse_if=lambda s: (
            s.algorithm.distill is not None
            and s.algorithm.distill.url is None
            and not s.backend.convert_model
        ),
        refuse="Slime loads a teacher from a Megatron checkpoint: set backend.convert_model=true, which makes it, or"
        " set distill.url to a server with the teacher",
    ),
)


def _source(spec: RunSpec) -> str | None:
    if spec.algorithm.dynamic_sampling:
        return FRESH_TASKS
    if spec.training.max_staleness:
        return AHEAD_TASKS
    return None


def _drawn(spec: RunSpec) -> str:
    """Note on the tasks that dynamic sampling draws, and on the groups that fill a step."""
    if spec.training.prompts_per_round == spec.training.prompts_per_step:
        return "A dropped group draws one new task."
    return "The groups that end first fill a step, so that short episodes are preferred."


ALGORITHM = (
    Row(
        "algorithm.estimator",
        lambda s: {"--advantage-estimator": native_estimator(s)},
        implemented_by=ADVANTAGES,
    ),
    Row(
        "algorithm.advantage_scale",
        lambda s: {
            "--disable-grpo-std-normalization": s.algorithm.advantage_scale
            is not AdvantageScale.GROUP_STD,
            # xp.backends.slime.worker.advantages has divided by the others already.
            "--normalize-advantages": s.algorithm.estimator is Estimator.GAE,
        },
        implemented_by=ADVANTAGES,
    ),
    *CRITIC,
    *DISTILL,
    _of_loss("policy_loss", PolicyLoss.CLIP),
    Row(
        "algorithm.sapo",
        refuse="Slime has no such policy loss; use algorithm=gspo or cispo, or backend=trl or skyrl",
    ),
    _of_loss("ratio_level", RatioLevel.TOKEN),
    Row("algorithm.clip_low", "--eps-clip"),
    Row("algorithm.clip_high", "--eps-clip-high"),
    Row("algorithm.dual_clip", "--eps-clip-c"),
    Row(
        "algorithm.loss_aggregation",
        # xp divides the token mean's sums by another number.
        lambda s: {
            "--calculate-per-token-loss": s.algorithm.loss_aggregation
            is not LossAggregation.SEQUENCE_MEAN
        },
        implemented_by=MEANS,
        refuse_if=lambda s: (
            s.algorithm.loss_aggregation is LossAggregation.CONSTANT and s.training.entropy_coef > 0
        ),
        refuse="the constant would divide Slime's entropy bonus too; set training.entropy_coef=0, token_mean or"
        " sequence_mean, or use backend=trl or skyrl",
    ),
    Row("algorithm.loss_length", implemented_by=MEANS),
    # low_var_kl is k3 clamped to 10; k3 is the exact estimator.
    Row("algorithm.kl_estimator", "--kl-loss-type"),
    Row(
        "algorithm.use_kl_in_reward",
        refuse="xp computes the advantages where Slime has no log-probabilities; set false, which puts the penalty into"
        " the loss, or use backend=skyrl",
    ),
    # Slime's own functions have token weights only, and report no effective sample size.
    Row(
        "algorithm.importance_correction",
        lambda s: {
            "--use-tis": s.algorithm.is_corrected and not is_to_engine(s),
            # Slime calls the function for this too, and only this is legal beside the ratio to the engine.
            "--get-mismatch-metrics": s.algorithm.is_corrected and is_to_engine(s),
            "--custom-tis-function-path": f"{IMPORTANCE}.weighed"
            if s.algorithm.is_corrected
            else None,
        },
    ),
    Row("algorithm.importance_lower", "--tis-clip-low"),
    Row("algorithm.importance_upper", "--tis-clip"),
    Row(
        "algorithm.importance_mask",
        implemented_by=lambda s: IMPORTANCE if is_masked(s) else NO_MASK,
    ),
    *mask_bounds(IMPORTANCE),
    Row("algorithm.ratio_from", lambda s: {"--use-rollout-logprobs": is_to_engine(s)}),
    Row(
        "algorithm.mask_truncated",
        implemented_by="Sample.remove_sample, by xp.backends.slime.worker.rollout",
    ),
    Row("algorithm.zero_variance_filter", implemented_by=f"Sample.remove_sample, by {ADVANTAGES}"),
    Row(
        "algorithm.dynamic_sampling",
        lambda s: {
            "--dynamic-sampling-filter-path": HAS_VARIANCE
            if s.algorithm.dynamic_sampling
            else None,
            "--data-source-path": _source(s),
        },
        note=lambda s: _drawn(s) if s.algorithm.dynamic_sampling else "",
    ),
    Row("algorithm.max_sample_batches", implemented_by="xp.backends.slime.worker.rollout_process"),
)
