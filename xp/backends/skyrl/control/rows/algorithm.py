"""Rows of the section `algorithm`."""

from __future__ import annotations

from xp.backends.skyrl.control.constraints import is_megatron
from xp.backends.skyrl.control.keys import ALGORITHM as PLACE
from xp.backends.skyrl.control.keys import Keys, has_critic
from xp.backends.skyrl.worker.config import XP_ESTIMATOR, has_native_correction
from xp.planning.rows import Row
from xp.planning.shared_rows import (
    NO_MASK,
    NO_WEIGHT,
    has_xp_estimator,
    is_masked,
    is_to_engine,
    is_weighed,
    no_clip,
    sapo_rows,
)
from xp.spec import AdvantageScale, ImportanceMask, LossAggregation, PolicyLoss, RatioLevel, RunSpec

LOSS_REDUCTION = {
    LossAggregation.TOKEN_MEAN: "token_mean",
    LossAggregation.SEQUENCE_MEAN: "sequence_mean",
    LossAggregation.CONSTANT: "seq_mean_token_sum_norm",
}
OFF_POLICY = f"{PLACE}.off_policy_correction"
MASK_METRIC = {ImportanceMask.SEQUENCE: "product", ImportanceMask.GEOMETRIC: "geometric"}
MASK_BOUND = {
    ImportanceMask.TOKEN: "token_mask_is_threshold",
    ImportanceMask.SEQUENCE: "product_mask",
    ImportanceMask.GEOMETRIC: "geo_mask",
}
"""Mask -> how SkyRL's keys of its bounds begin."""
BY_XP = "xp.backends.skyrl.worker.trainer"


def _policy_loss(spec: RunSpec) -> str:
    if spec.algorithm.policy_loss is not PolicyLoss.CLIP:
        return spec.algorithm.policy_loss.value
    if spec.algorithm.ratio_level is RatioLevel.SEQUENCE:
        return "gspo"
    if spec.algorithm.dual_clip is None:
        return "regular"
    return "dual_clip"


def _clip_row(end: str) -> Row:
    """Row of a bound, which both losses write as 1 - low and 1 + high."""

    def render(spec: RunSpec) -> Keys:
        if spec.algorithm.policy_loss is PolicyLoss.CISPO:
            loss = "cispo.cispo_eps_clip"
        else:
            loss = "eps_clip"
        return {f"{PLACE}.{loss}_{end}": getattr(spec.algorithm, f"clip_{end}")}

    return Row(f"algorithm.clip_{end}", render, implemented_by=no_clip)


def _advantages(spec: RunSpec) -> str:
    if has_xp_estimator(spec):
        return "xp.backends.skyrl.worker.advantages"
    return ""


def _loss_length(spec: RunSpec) -> Keys:
    algorithm = spec.algorithm
    is_constant = algorithm.loss_aggregation is LossAggregation.CONSTANT
    length = algorithm.loss_length or spec.training.max_response_tokens
    return {f"{PLACE}.max_seq_len": length if is_constant else None}


def _weight_level(spec: RunSpec) -> str | None:
    """Value of SkyRL's `tis_ratio_type`. None means that there is no weight, or that xp computes it."""
    is_native = is_weighed(spec) and has_native_correction(spec.algorithm)
    if is_native:
        return spec.algorithm.importance_correction.partition("_")[0]
    return None


def _importance_mask(spec: RunSpec) -> Keys:
    if has_native_correction(spec.algorithm):
        mask = spec.algorithm.importance_mask
    else:
        mask = ImportanceMask.NONE
    return {
        f"{OFF_POLICY}.sequence_mask_metric": MASK_METRIC.get(mask),
        **dict.fromkeys(f"{OFF_POLICY}.token_mask_is_threshold_{end}" for end in ("low", "high")),
    }


def _mask_bound(end: str) -> Row:
    """Row of a bound of the importance mask; SkyRL's names of it end in `low` and `high`."""
    name = f"mask_{end}"
    native = {"lower": "low", "upper": "high"}[end]

    def render(spec: RunSpec) -> Keys:
        if not is_masked(spec) or not has_native_correction(spec.algorithm):
            return {}
        key = MASK_BOUND[spec.algorithm.importance_mask]
        return {f"{OFF_POLICY}.{key}_{native}": getattr(spec.algorithm, name)}

    def implemented_by(spec: RunSpec) -> str:
        if not is_masked(spec):
            return NO_MASK
        return "" if render(spec) else BY_XP

    return Row(f"algorithm.{name}", render, implemented_by=implemented_by)


def _weighed_by(spec: RunSpec) -> str:
    if not is_weighed(spec):
        return NO_WEIGHT
    return "" if _weight_level(spec) else BY_XP


def _by_xp(spec: RunSpec) -> str:
    """Note on a weight or mask that xp computes."""
    if has_native_correction(spec.algorithm):
        return ""
    return (
        "xp multiplies the advantages by the weights: SkyRL cuts only from above, and compares the engine with the old"
        " log-probabilities of the ratio."
    )


def _no_teacher(spec: RunSpec) -> str | None:
    """Returns why SkyRL cannot train with this teacher; None if it can, or if there is none."""
    if spec.algorithm.distill is None:
        return None
    if spec.algorithm.distill.url is not None:
        return "SkyRL loads the teacher itself, as its reference model; set distill.url=null, or backend=trl or slime"
    if is_megatron(spec):
        return (
            "SkyRL's teacher needs FSDP2; set backend.parallel.strategy=fsdp2, or use backend=slime"
        )
    if spec.training.kl_coef > 0:
        return "SkyRL's one reference model is the teacher; set training.kl_coef=0, or use backend=trl or slime"
    return None


ALGORITHM = (
    Row(
        "algorithm.estimator",
        lambda s: {
            f"{PLACE}.advantage_estimator": XP_ESTIMATOR
            if has_xp_estimator(s)
            else s.algorithm.estimator.value
        },
        implemented_by=_advantages,
        refuse_if=lambda s: has_critic(s) and is_megatron(s),
        refuse="SkyRL has no critic under Megatron; set backend.parallel.strategy=fsdp2, or use algorithm=grpo",
    ),
    Row("algorithm.critic", implemented_by="trainer.critic.model.path=null"),
    # With that key SkyRL makes a reference model and computes its log-probabilities; xp's trainer takes no penalty.
    Row(
        "algorithm.distill",
        implemented_by="trainer.ref.model.path and xp's trainer, where it is set",
        refuse=_no_teacher,
    ),
    Row(
        "algorithm.critic.discount",
        f"{PLACE}.gamma",
        note="Only the policy's tokens are discounted, not a tool's.",
    ),
    Row("algorithm.critic.gae_lambda", f"{PLACE}.lambd"),
    Row("algorithm.critic.value_clip", f"{PLACE}.value_clip"),
    Row(
        "algorithm.advantage_scale",
        lambda s: {
            f"{PLACE}.grpo_norm_by_std": s.algorithm.advantage_scale is AdvantageScale.GROUP_STD
        },
        implemented_by=_advantages,
    ),
    Row("algorithm.policy_loss", lambda s: {f"{PLACE}.policy_loss_type": _policy_loss(s)}),
    *sapo_rows(f"{PLACE}.sapo.tau_"),
    Row(
        "algorithm.ratio_level",
        implemented_by="trainer.algorithm.policy_loss_type, with policy_loss",
    ),
    *(_clip_row(end) for end in ("low", "high")),
    Row(
        "algorithm.dual_clip",
        lambda s: (
            {}
            if s.algorithm.dual_clip is None
            else {f"{PLACE}.clip_ratio_c": s.algorithm.dual_clip}
        ),
        implemented_by="trainer.algorithm.policy_loss_type, with policy_loss",
        refuse_if=lambda s: (
            s.algorithm.dual_clip is not None and s.algorithm.ratio_level is RatioLevel.SEQUENCE
        ),
        refuse="SkyRL's gspo has no dual clip; set ratio_level=token or dual_clip=null, or use backend=trl or slime",
    ),
    Row(
        "algorithm.loss_aggregation",
        lambda s: {f"{PLACE}.loss_reduction": LOSS_REDUCTION[s.algorithm.loss_aggregation]},
    ),
    Row("algorithm.loss_length", _loss_length),
    Row(
        "algorithm.kl_estimator",
        lambda s: {f"{PLACE}.kl_estimator_type": s.algorithm.kl_estimator.value},
        note=lambda s: (
            "k3 is cut at 10, and its log-ratio at 20." if s.training.kl_coef > 0 else ""
        ),
    ),
    Row(
        "algorithm.use_kl_in_reward",
        lambda s: {
            f"{PLACE}.use_kl_in_reward": (
                s.algorithm.distill is not None
                or (s.algorithm.use_kl_in_reward and s.training.kl_coef > 0)
            ),
            f"{PLACE}.kl_ctrl.type": "fixed",
        },
        refuse_if=lambda s: (
            s.algorithm.use_kl_in_reward and s.algorithm.critic is None and has_xp_estimator(s)
        ),
        refuse=lambda s: (
            f"estimator={s.algorithm.estimator} reads one reward of an episode, not of each token; set false"
        ),
    ),
    Row(
        "algorithm.importance_correction",
        lambda s: {f"{OFF_POLICY}.tis_ratio_type": _weight_level(s)},
        note=lambda s: _by_xp(s) if is_weighed(s) else "",
    ),
    Row(
        "algorithm.importance_lower", implemented_by=lambda s: BY_XP if is_weighed(s) else NO_WEIGHT
    ),
    Row(
        "algorithm.importance_upper",
        lambda s: (
            {f"{OFF_POLICY}.{level}_tis_ratio_clip_high": s.algorithm.importance_upper}
            if (level := _weight_level(s))
            else {}
        ),
        implemented_by=_weighed_by,
    ),
    Row("algorithm.importance_mask", _importance_mask, note_if=is_masked, note=_by_xp),
    *(_mask_bound(end) for end in ("lower", "upper")),
    Row(
        "algorithm.ratio_from",
        implemented_by=lambda s: BY_XP if is_to_engine(s) else "SkyRL's own",
        note=lambda s: (
            "xp replaces the old log-probabilities by the engine's." if is_to_engine(s) else ""
        ),
    ),
    Row(
        "algorithm.mask_truncated",
        implemented_by="loss masks from xp.backends.skyrl.worker.generator",
    ),
    # SkyRL's own filter reads one reward of a response, and xp gives it one of each token.
    Row(
        "algorithm.zero_variance_filter",
        f"{PLACE}.zero_variance_filter",
        implemented_by="loss masks from xp.backends.skyrl.worker.trainer",
    ),
    Row(
        "algorithm.dynamic_sampling",
        lambda s: {
            # SkyRL's fully asynchronous trainer has none, and xp's part of it drops the groups.
            f"{PLACE}.dynamic_sampling.type": (
                "filter" if s.algorithm.dynamic_sampling and not s.training.max_staleness else None
            ),
            # SkyRL drops the groups of a step that an epoch's end divides: the whole training is one epoch.
            "trainer.epochs": 1,
        },
        note=lambda s: (
            "The first groups in order fill a step." if s.algorithm.dynamic_sampling else ""
        ),
    ),
    Row("algorithm.max_sample_batches", f"{PLACE}.dynamic_sampling.max_sample_batches"),
)
