"""Rows of the section `algorithm`."""

from __future__ import annotations

from collections.abc import Mapping

from xp.backends.skyrl.control.constraints import is_megatron
from xp.backends.skyrl.control.keys import ALGORITHM as PLACE
from xp.backends.skyrl.control.keys import Keys, has_critic, has_xp_estimator
from xp.backends.skyrl.worker.config import XP_ESTIMATOR
from xp.planning.rows import Row, when
from xp.planning.shared_rows import is_corrected, is_to_engine, no_clip, sapo_rows
from xp.spec import AdvantageScale, ImportanceCorrection, LossAggregation, PolicyLoss, RatioLevel, RunSpec

LOSS_REDUCTION = {
    LossAggregation.TOKEN_MEAN: "token_mean",
    LossAggregation.SEQUENCE_MEAN: "sequence_mean",
    LossAggregation.CONSTANT: "seq_mean_token_sum_norm",
}
OFF_POLICY = f"{PLACE}.off_policy_correction"
MASK_METRIC = {ImportanceCorrection.SEQUENCE_MASK: "product", ImportanceCorrection.GEOMETRIC_MASK: "geometric"}
LOWER: Mapping[ImportanceCorrection, tuple[str, ...]] = {
    ImportanceCorrection.TOKEN_MASK: ("token_mask_is_threshold_low",),
    ImportanceCorrection.SEQUENCE_MASK: ("product_mask_low",),
    ImportanceCorrection.GEOMETRIC_MASK: ("geo_mask_low",),
}
UPPER: Mapping[ImportanceCorrection, tuple[str, ...]] = {
    ImportanceCorrection.TOKEN_TRUNCATE: ("token_tis_ratio_clip_high",),
    ImportanceCorrection.SEQUENCE_TRUNCATE: ("sequence_tis_ratio_clip_high",),
    ImportanceCorrection.TOKEN_MASK: ("token_mask_is_threshold_high", "token_tis_ratio_clip_high"),
    ImportanceCorrection.SEQUENCE_MASK: ("product_mask_high", "sequence_tis_ratio_clip_high"),
    ImportanceCorrection.GEOMETRIC_MASK: ("geo_mask_high",),
}
"""Correction -> SkyRL's keys of its bound; SkyRL's masks alone have no weights, so that two also have a cut."""


def _policy_loss(spec: RunSpec) -> str:
    if spec.algorithm.policy_loss is not PolicyLoss.CLIP:
        return spec.algorithm.policy_loss.value
    if spec.algorithm.ratio_level is RatioLevel.SEQUENCE:
        return "gspo"
    return "regular" if spec.algorithm.dual_clip is None else "dual_clip"


def _clip_row(end: str) -> Row:
    """Row of a bound, which both losses write as 1 - low and 1 + high."""

    def render(spec: RunSpec) -> Keys:
        loss = "cispo.cispo_eps_clip" if spec.algorithm.policy_loss is PolicyLoss.CISPO else "eps_clip"
        return {f"{PLACE}.{loss}_{end}": getattr(spec.algorithm, f"clip_{end}")}

    return Row(f"algorithm.clip_{end}", render, implemented_by=no_clip)


def _advantages(spec: RunSpec) -> str:
    return "xp.backends.skyrl.worker.advantages" if has_xp_estimator(spec) else ""


def _loss_length(spec: RunSpec) -> Keys:
    algorithm = spec.algorithm
    is_constant = algorithm.loss_aggregation is LossAggregation.CONSTANT
    length = algorithm.loss_length or spec.training.max_response_tokens
    return {f"{PLACE}.max_seq_len": length if is_constant else None}


def has_native_correction(spec: RunSpec) -> bool:
    """Returns whether SkyRL has the importance correction with these bounds, or there is none."""
    if is_to_engine(spec):
        # SkyRL compares the old log-probabilities with the engine's, and xp replaces them by these.
        return not is_corrected(spec)
    return spec.algorithm.importance_lower == 0 or not spec.algorithm.importance_correction.endswith("truncate")


def _importance_correction(spec: RunSpec) -> Keys:
    correction = spec.algorithm.importance_correction
    level = correction.partition("_")[0] if has_native_correction(spec) else None
    return {
        f"{OFF_POLICY}.tis_ratio_type": level if level in ("token", "sequence") else None,
        f"{OFF_POLICY}.sequence_mask_metric": MASK_METRIC.get(correction),
        **dict.fromkeys(f"{OFF_POLICY}.token_mask_is_threshold_{end}" for end in ("low", "high")),
    }


def _bound(name: str, by_correction: Mapping[ImportanceCorrection, tuple[str, ...]]) -> Row:
    """Row of a bound of the importance correction."""

    def render(spec: RunSpec) -> Keys:
        keys = by_correction.get(spec.algorithm.importance_correction, ()) if has_native_correction(spec) else ()
        return {f"{OFF_POLICY}.{key}": getattr(spec.algorithm, name) for key in keys}

    def receives(spec: RunSpec) -> str:
        if not is_corrected(spec):
            return "nothing: there is no correction to bound"
        return "" if render(spec) else "xp.backends.skyrl.worker.trainer"

    return Row(f"algorithm.{name}", render, implemented_by=receives)


def _no_teacher(spec: RunSpec) -> str | None:
    """Returns why SkyRL cannot train with this teacher; None if it can, or if there is none."""
    if spec.algorithm.distill is None:
        return None
    if spec.algorithm.distill.url is not None:
        return "SkyRL loads the teacher itself, as its reference model; set distill.url=null, or backend=trl or slime"
    if is_megatron(spec):
        return "SkyRL's teacher needs FSDP2; set backend.parallel.strategy=fsdp2, or use backend=slime"
    if spec.training.kl_coef > 0:
        return "SkyRL's one reference model is the teacher; set training.kl_coef=0, or use backend=trl or slime"
    return None


def _of_critic(name: str, key: str, note: str = "") -> Row:
    """Row of a number of the critic."""
    return Row(
        f"algorithm.critic.{name}",
        lambda s: {} if s.algorithm.critic is None else {f"{PLACE}.{key}": getattr(s.algorithm.critic, name)},
        note=note,
    )


ALGORITHM = (
    Row(
        "algorithm.estimator",
        lambda s: {
            f"{PLACE}.advantage_estimator": XP_ESTIMATOR if has_xp_estimator(s) else s.algorithm.estimator.value
        },
        implemented_by=_advantages,
        refuse=when(
            lambda s: has_critic(s) and is_megatron(s),
            "SkyRL has no critic under Megatron; set backend.parallel.strategy=fsdp2, or use algorithm=grpo",
        ),
    ),
    Row("algorithm.critic", implemented_by="trainer.critic.model.path=null"),
    # With that key SkyRL makes a reference model and computes its log-probabilities; xp's trainer takes no penalty.
    Row(
        "algorithm.distill",
        implemented_by="trainer.ref.model.path and xp's trainer, where it is set",
        refuse=_no_teacher,
    ),
    _of_critic("discount", "gamma", "Only the policy's tokens are discounted, not a tool's."),
    _of_critic("gae_lambda", "lambd"),
    _of_critic("value_clip", "value_clip"),
    Row(
        "algorithm.advantage_scale",
        lambda s: {f"{PLACE}.grpo_norm_by_std": s.algorithm.advantage_scale is AdvantageScale.GROUP_STD},
        implemented_by=_advantages,
        refuse=when(
            lambda s: s.algorithm.advantage_scale is AdvantageScale.BATCH_STD and not has_xp_estimator(s),
            "SkyRL scales by the group's deviation or not at all; set group_std or none",
        ),
    ),
    Row("algorithm.policy_loss", lambda s: {f"{PLACE}.policy_loss_type": _policy_loss(s)}),
    *sapo_rows(f"{PLACE}.sapo.tau_"),
    Row("algorithm.ratio_level", implemented_by="trainer.algorithm.policy_loss_type, with policy_loss"),
    *(_clip_row(end) for end in ("low", "high")),
    Row(
        "algorithm.dual_clip",
        lambda s: {} if s.algorithm.dual_clip is None else {f"{PLACE}.clip_ratio_c": s.algorithm.dual_clip},
        implemented_by="trainer.algorithm.policy_loss_type, with policy_loss",
        refuse=when(
            lambda s: s.algorithm.dual_clip is not None and s.algorithm.ratio_level is RatioLevel.SEQUENCE,
            "SkyRL's gspo has no dual clip; set ratio_level=token or dual_clip=null, or use backend=trl or slime",
        ),
    ),
    Row(
        "algorithm.loss_aggregation",
        lambda s: {f"{PLACE}.loss_reduction": LOSS_REDUCTION[s.algorithm.loss_aggregation]},
    ),
    Row("algorithm.loss_length", _loss_length),
    Row(
        "algorithm.kl_estimator",
        lambda s: {f"{PLACE}.kl_estimator_type": s.algorithm.kl_estimator.value},
        note=lambda s: "k3 is cut at 10, and its log-ratio at 20." if s.training.kl_coef > 0 else "",
    ),
    Row(
        "algorithm.use_kl_in_reward",
        lambda s: {
            f"{PLACE}.use_kl_in_reward": (
                s.algorithm.distill is not None or (s.algorithm.use_kl_in_reward and s.training.kl_coef > 0)
            ),
            f"{PLACE}.kl_ctrl.type": "fixed",
        },
        refuse=when(
            lambda s: s.algorithm.use_kl_in_reward and s.algorithm.critic is None and has_xp_estimator(s),
            lambda s: f"estimator={s.algorithm.estimator} reads one reward of an episode, not of each token; set false",
        ),
    ),
    Row(
        "algorithm.importance_correction",
        _importance_correction,
        note=lambda s: (
            ""
            if has_native_correction(s)
            else "xp multiplies the advantages by the weights: SkyRL cuts only from above, and compares the engine with"
            " the old log-probabilities of the ratio."
        ),
    ),
    _bound("importance_lower", LOWER),
    _bound("importance_upper", UPPER),
    Row(
        "algorithm.ratio_from",
        implemented_by=lambda s: "xp.backends.skyrl.worker.trainer" if is_to_engine(s) else "SkyRL's own",
        note=lambda s: "xp replaces the old log-probabilities by the engine's." if is_to_engine(s) else "",
    ),
    Row("algorithm.mask_truncated", implemented_by="loss masks from xp.backends.skyrl.worker.generator"),
    # SkyRL's own filter reads one reward of a response, and xp gives it one of each token.
    Row(
        "algorithm.zero_variance_filter",
        f"{PLACE}.zero_variance_filter",
        implemented_by="loss masks from xp.backends.skyrl.worker.trainer",
    ),
    Row(
        "algorithm.dynamic_sampling",
        lambda s: {
            f"{PLACE}.dynamic_sampling.type": "filter" if s.algorithm.dynamic_sampling else None,
            # SkyRL drops the groups of a step that an epoch's end divides: the whole training is one epoch.
            "trainer.epochs": 1,
        },
        note=lambda s: "The first groups in order fill a step." if s.algorithm.dynamic_sampling else "",
    ),
    Row("algorithm.max_sample_batches", f"{PLACE}.dynamic_sampling.max_sample_batches"),
)
