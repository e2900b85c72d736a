"""Rows of the section `algorithm`; source of the losses: trl 1.16.0, trl/trainer/grpo_trainer.py `_compute_loss`."""

from __future__ import annotations

from typing import Any

from xp.planning.rows import Row
from xp.planning.shared_rows import (
    NO_MASK,
    NO_WEIGHT,
    has_xp_estimator,
    is_masked,
    is_to_engine,
    is_weighed,
    mask_bounds,
    no_clip,
    sapo_rows,
)
from xp.spec import (
    AdvantageScale,
    EngineName,
    Estimator,
    ImportanceCorrection,
    KlEstimator,
    LossAggregation,
    PolicyLoss,
    RunSpec,
)

SCALE = {
    AdvantageScale.GROUP_STD: "group",
    AdvantageScale.BATCH_STD: "batch",
    AdvantageScale.NONE: "none",
}
LOSS_TYPE = {
    LossAggregation.TOKEN_MEAN: "dapo",
    LossAggregation.SEQUENCE_MEAN: "grpo",
    LossAggregation.CONSTANT: "dr_grpo",
}
OTHER_ESTIMATORS = {
    Estimator.RLOO: "includes every episode in the mean of its group",
    Estimator.MAXRL: "divides by the deviation of a group, not by its mean",
    Estimator.GAE: "has no critic",
}
"""Estimator -> difference of TRL's GRPOTrainer from it."""
RULES = "xp.episode.advantages"
GUARD = "xp.backends.trl.worker.guard"
MEANS = "xp.backends.trl.worker.means"
NO_CRITIC = "nothing: GRPOTrainer has no critic"


MEAN_OF_LOSS = {
    PolicyLoss.CISPO: LossAggregation.TOKEN_MEAN,
    PolicyLoss.SAPO: LossAggregation.SEQUENCE_MEAN,
}
"""Losses that TRL averages in one way only."""


def _has_mean(spec: RunSpec) -> bool:
    """Returns whether the loss determines its mean."""
    return spec.algorithm.policy_loss in MEAN_OF_LOSS


def _other_aggregation(spec: RunSpec) -> str | None:
    aggregation = spec.algorithm.loss_aggregation
    loss = spec.algorithm.policy_loss
    native = MEAN_OF_LOSS.get(loss)
    if native in (None, aggregation):
        return None
    return f"TRL's {loss} averages by {native}, not by {aggregation}; set {native}, or use backend=skyrl"


def _importance_mode(spec: RunSpec) -> dict[str, Any]:
    if not spec.algorithm.is_corrected:
        return {"vllm_importance_sampling_correction": False}
    # A mask alone needs TRL's log-probabilities, and replaces its weights.
    if is_weighed(spec):
        mode = spec.algorithm.importance_correction
    else:
        mode = ImportanceCorrection.TOKEN_TRUNCATE
    return {
        "vllm_importance_sampling_correction": True,
        "vllm_importance_sampling_mode": mode.value,
    }


def _bound(name: str, key: str) -> Row:
    """Row of a bound of the importance weight."""
    return Row(
        f"algorithm.{name}",
        lambda s: {key: getattr(s.algorithm, name) or None} if is_weighed(s) else {},
        implemented_by=lambda s: "" if is_weighed(s) else NO_WEIGHT,
    )


def _is_own_policy(spec: RunSpec) -> bool:
    return spec.backend.engine.name is EngineName.TRANSFORMERS and not spec.training.max_staleness


OWN_POLICY = "with backend.engine.name=transformers the policy itself generates: there is nothing to correct; set "


ALGORITHM = (
    Row(
        "algorithm.estimator",
        implemented_by=lambda s: RULES if has_xp_estimator(s) else "GRPOTrainer's own",
        refuse=lambda s: (
            f"TRL's GRPOTrainer {other}; use algorithm=grpo, or backend=skyrl or slime"
            if (other := OTHER_ESTIMATORS.get(s.algorithm.estimator))
            else None
        ),
    ),
    Row("algorithm.critic", implemented_by=NO_CRITIC),
    Row(
        "algorithm.advantage_scale",
        lambda s: {"scale_rewards": SCALE[s.algorithm.advantage_scale]},
        implemented_by=lambda s: RULES if has_xp_estimator(s) else MEANS,
    ),
    Row(
        "algorithm.policy_loss",
        lambda s: {"loss_type": s.algorithm.policy_loss.value} if _has_mean(s) else {},
        implemented_by=lambda s: (
            "" if _has_mean(s) else "loss_type, with algorithm.loss_aggregation"
        ),
    ),
    *sapo_rows("sapo_temperature_"),
    Row(
        "algorithm.ratio_level",
        lambda s: {"importance_sampling_level": s.algorithm.ratio_level.value},
    ),
    Row(
        "algorithm.clip_low",
        "epsilon",
        implemented_by=no_clip,
        refuse_if=lambda s: (
            s.algorithm.policy_loss is PolicyLoss.CISPO and s.algorithm.clip_low != 1
        ),
        refuse="TRL's cispo has no lower bound; set 1, or use backend=skyrl or slime",
    ),
    # For cispo the largest weight itself, for others its distance from 1.
    Row(
        "algorithm.clip_high",
        lambda s: {
            "epsilon_high": s.algorithm.clip_high + (s.algorithm.policy_loss is PolicyLoss.CISPO)
        },
        implemented_by=no_clip,
    ),
    # TRL bounds the ratio of all tokens before it clips; for positive advantages clip_high is the smaller bound.
    Row("algorithm.dual_clip", "delta"),
    Row(
        "algorithm.loss_aggregation",
        lambda s: {} if _has_mean(s) else {"loss_type": LOSS_TYPE[s.algorithm.loss_aggregation]},
        implemented_by=lambda s: (
            f"loss_type={s.algorithm.policy_loss}; {MEANS}" if _has_mean(s) else MEANS
        ),
        refuse=_other_aggregation,
    ),
    Row(
        "algorithm.loss_length",
        implemented_by=lambda s: (
            MEANS if s.algorithm.loss_length is not None else "max_completion_length"
        ),
    ),
    Row(
        "algorithm.use_kl_in_reward",
        refuse="TRL has the rewards before the log-probabilities; set false, which puts the penalty into the loss, or"
        " use backend=skyrl",
    ),
    # TRL has only k3, and by default weights it by the ratio.
    Row(
        "algorithm.kl_estimator",
        {"use_bias_correction_kl": False},
        refuse_if=lambda s: (
            s.training.kl_coef > 0 and s.algorithm.kl_estimator is not KlEstimator.K3
        ),
        refuse="TRL has the k3 estimator only; set k3, or training.kl_coef=0",
    ),
    Row(
        "algorithm.importance_correction",
        _importance_mode,
        refuse_if=lambda s: _is_own_policy(s) and is_weighed(s),
        refuse=f"{OWN_POLICY}none",
    ),
    _bound("importance_lower", "vllm_importance_sampling_clip_min"),
    _bound("importance_upper", "vllm_importance_sampling_clip_max"),
    Row(
        "algorithm.importance_mask",
        implemented_by=lambda s: GUARD if is_masked(s) else NO_MASK,
        note=lambda s: (
            "xp's weights, which are 0 for what the mask leaves out, replace TRL's."
            if is_masked(s)
            else ""
        ),
        refuse_if=lambda s: _is_own_policy(s) and is_masked(s),
        refuse=f"{OWN_POLICY}none",
    ),
    *mask_bounds(GUARD),
    Row(
        "algorithm.ratio_from",
        implemented_by=lambda s: GUARD if is_to_engine(s) else "GRPOTrainer's own",
        note=lambda s: (
            "xp replaces the old log-probabilities by the engine's." if is_to_engine(s) else ""
        ),
        refuse_if=lambda s: _is_own_policy(s) and is_to_engine(s),
        refuse=f"{OWN_POLICY}trainer",
    ),
    Row("algorithm.mask_truncated", implemented_by="env_mask from xp.backends.trl.worker.rollout"),
    Row(
        "algorithm.zero_variance_filter",
        implemented_by="env_mask from xp.backends.trl.worker.rollout",
    ),
    Row(
        "algorithm.dynamic_sampling",
        refuse="TRL's GRPOTrainer does not resample groups; set false, or use backend=skyrl or slime",
    ),
    Row("algorithm.max_sample_batches", implemented_by="nothing: there is no dynamic sampling"),
)
