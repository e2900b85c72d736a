"""The section `algorithm`: weights and masks for the gap between engine and trainer."""

from __future__ import annotations

from collections.abc import Callable

from xp.fields import skyrl
from xp.fields.field import OWN, Column, Field, Native
from xp.fields.shared import has_own_decoding, is_ahead, is_masked, is_to_engine, is_weighed
from xp.spec import ImportanceCorrection, ImportanceMask, RunSpec
from xp.worker.skyrl_names import has_native_correction

NO_WEIGHT = "nothing: there is no weight to bound"
NO_MASK = "nothing: there is no mask"
"""What a backend receives of a bound without a weight, and of a mask and its bounds."""


def masked_by(module: str) -> Callable[[RunSpec], str]:
    """What implements a mask and its bounds."""
    return lambda s: module if is_masked(s) else NO_MASK


# TRL
GUARD = "xp.backends.trl.worker.guard"


def _importance_mode(spec: RunSpec) -> Native:
    if not spec.algorithm.is_corrected:
        return {"vllm_importance_sampling_correction": False}
    # A mask alone needs TRL's log-probabilities, and replaces its weights.
    mode = ImportanceCorrection.TOKEN_TRUNCATE
    if is_weighed(spec):
        mode = spec.algorithm.importance_correction
    return {
        "vllm_importance_sampling_correction": True,
        "vllm_importance_sampling_mode": mode.value,
    }


def _bound(key: str) -> Column:
    """Column of a bound of the importance weight."""
    return Column(
        key,
        lambda bound: bound or None,
        render_if=is_weighed,
        implemented_by=lambda s: "" if is_weighed(s) else NO_WEIGHT,
    )


def _is_own_policy(spec: RunSpec) -> bool:
    return has_own_decoding(spec) and not is_ahead(spec)


OWN_POLICY = "with backend.engine.name=transformers the policy itself generates: there is nothing to correct; set "

# SkyRL
OFF_POLICY = f"{skyrl.ALGORITHM}.off_policy_correction"
MASK_METRIC = {ImportanceMask.SEQUENCE: "product", ImportanceMask.GEOMETRIC: "geometric"}
MASK_BOUND = {
    ImportanceMask.TOKEN: "token_mask_is_threshold",
    ImportanceMask.SEQUENCE: "product_mask",
    ImportanceMask.GEOMETRIC: "geo_mask",
}
"""Mask -> how SkyRL's keys of its bounds begin."""
TRAINER = "xp.backends.skyrl.worker.trainer"


def _weight_level(spec: RunSpec) -> str | None:
    """Value of SkyRL's `tis_ratio_type`. None means that there is no weight, or that xp computes it."""
    if is_weighed(spec) and has_native_correction(spec.algorithm):
        return spec.algorithm.importance_correction.partition("_")[0]
    return None


def _importance_mask(spec: RunSpec) -> Native:
    mask = ImportanceMask.NONE
    if has_native_correction(spec.algorithm):
        mask = spec.algorithm.importance_mask
    return {
        f"{OFF_POLICY}.sequence_mask_metric": MASK_METRIC.get(mask),
        **dict.fromkeys(f"{OFF_POLICY}.token_mask_is_threshold_{end}" for end in ("low", "high")),
    }


def _mask_bound(end: str) -> Column:
    """Column of a bound of the importance mask; SkyRL's names of it end in `low` and `high`."""
    name = f"mask_{end}"
    native = {"lower": "low", "upper": "high"}[end]

    def render(spec: RunSpec) -> Native:
        if not is_masked(spec) or not has_native_correction(spec.algorithm):
            return {}
        key = MASK_BOUND[spec.algorithm.importance_mask]
        return {f"{OFF_POLICY}.{key}_{native}": getattr(spec.algorithm, name)}

    def implemented_by(spec: RunSpec) -> str:
        if not is_masked(spec):
            return NO_MASK
        return "" if render(spec) else TRAINER

    return Column(render, implemented_by=implemented_by)


def _weighed_by(spec: RunSpec) -> str:
    if not is_weighed(spec):
        return NO_WEIGHT
    return "" if _weight_level(spec) else TRAINER


def _by_xp(spec: RunSpec) -> str:
    """Note on a weight or mask that xp computes."""
    if has_native_correction(spec.algorithm):
        return ""
    return (
        "xp multiplies the advantages by the weights: SkyRL cuts only from above, and compares the engine with the old"
        " log-probabilities of the ratio."
    )


# Slime
WEIGHTS = "xp.backends.slime.worker.importance"


def _upper_bound(spec: RunSpec) -> Native:
    level = _weight_level(spec)
    if not level:
        return {}
    return {f"{OFF_POLICY}.{level}_tis_ratio_clip_high": spec.algorithm.importance_upper}


IMPORTANCE = (
    Field(
        "algorithm.importance_correction",
        trl=Column(
            _importance_mode,
            refuse_if=lambda s: _is_own_policy(s) and is_weighed(s),
            refuse=f"{OWN_POLICY}none",
            proof=OWN,
        ),
        skyrl=Column(
            lambda s: {f"{OFF_POLICY}.tis_ratio_type": _weight_level(s)},
            note=lambda s: _by_xp(s) if is_weighed(s) else "",
            proof="skyrl::weights_are_cut_from_above",
        ),
        # Slime's own functions have token weights only, and report no effective sample size.
        slime=Column(
            lambda s: {
                "--use-tis": s.algorithm.is_corrected and not is_to_engine(s),
                # Slime calls the function for this too, and only this is legal beside the ratio to the engine.
                "--get-mismatch-metrics": s.algorithm.is_corrected and is_to_engine(s),
                "--custom-tis-function-path": f"{WEIGHTS}.weighed"
                if s.algorithm.is_corrected
                else None,
            }
        ),
    ),
    Field(
        "algorithm.importance_lower",
        trl=_bound("vllm_importance_sampling_clip_min"),
        skyrl=Column(implemented_by=lambda s: TRAINER if is_weighed(s) else NO_WEIGHT),
        slime="--tis-clip-low",
    ),
    Field(
        "algorithm.importance_upper",
        trl=_bound("vllm_importance_sampling_clip_max"),
        skyrl=Column(
            _upper_bound,
            implemented_by=_weighed_by,
        ),
        slime="--tis-clip",
    ),
    Field(
        "algorithm.importance_mask",
        trl=Column(
            implemented_by=masked_by(GUARD),
            note="xp's weights, which are 0 for what the mask leaves out, replace TRL's.",
            note_if=is_masked,
            refuse_if=lambda s: _is_own_policy(s) and is_masked(s),
            refuse=f"{OWN_POLICY}none",
            proof=OWN,
        ),
        skyrl=Column(
            _importance_mask,
            note_if=is_masked,
            note=_by_xp,
            proof="skyrl::weights_are_cut_from_above",
        ),
        slime=Column(implemented_by=masked_by(WEIGHTS)),
    ),
    Field(
        "algorithm.mask_lower",
        trl=Column(implemented_by=masked_by(GUARD)),
        skyrl=_mask_bound("lower"),
        slime=Column(implemented_by=masked_by(WEIGHTS)),
    ),
    Field(
        "algorithm.mask_upper",
        trl=Column(implemented_by=masked_by(GUARD)),
        skyrl=_mask_bound("upper"),
        slime=Column(implemented_by=masked_by(WEIGHTS)),
    ),
    Field(
        "algorithm.ratio_from",
        trl=Column(
            implemented_by=lambda s: GUARD if is_to_engine(s) else "GRPOTrainer's own",
            note="xp replaces the old log-probabilities by the engine's.",
            note_if=is_to_engine,
            refuse_if=lambda s: _is_own_policy(s) and is_to_engine(s),
            refuse=f"{OWN_POLICY}trainer",
            proof=OWN,
        ),
        skyrl=Column(
            implemented_by=lambda s: TRAINER if is_to_engine(s) else "SkyRL's own",
            note="xp replaces the old log-probabilities by the engine's.",
            note_if=is_to_engine,
            proof=OWN,
        ),
        slime=Column(lambda s: {"--use-rollout-logprobs": is_to_engine(s)}),
    ),
)
