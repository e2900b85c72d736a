"""The mathematics of an update; sizes and rates are in `training`."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field, model_validator

from xp.spec.section import Name, Section


class Estimator(StrEnum):
    """The baseline that is taken from an episode's reward."""

    GRPO = "grpo"
    """The mean of its group (arXiv:2402.03300)."""
    RLOO = "rloo"
    """The mean of its group without itself (arXiv:2402.14740)."""


class AdvantageScale(StrEnum):
    """By what the centred reward is divided."""

    GROUP_STD = "group_std"
    BATCH_STD = "batch_std"
    NONE = "none"


class LossAggregation(StrEnum):
    """Over what the policy loss is averaged."""

    TOKEN_MEAN = "token_mean"
    """All trained tokens of an optimizer update."""
    SEQUENCE_MEAN = "sequence_mean"
    """Per-episode token means, then the mean over episodes (GRPO's paper, arXiv:2402.03300)."""
    CONSTANT = "constant"
    """Sum over tokens divided by episodes x max_response_tokens (Dr. GRPO, arXiv:2503.20783)."""


class KlEstimator(StrEnum):
    """Schulman's estimators of KL(policy || reference), http://joschu.net/blog/kl-approx.html."""

    K1 = "k1"
    K2 = "k2"
    K3 = "k3"


class ImportanceCorrection(StrEnum):
    """Weight for the gap between the engine's log-probabilities and the trainer's (https://fengyao.notion.site/off-policy-rl)."""

    NONE = "none"
    TOKEN = "token"
    """Each token's ratio, cut at importance_cap."""
    SEQUENCE = "sequence"
    """The episode's product of ratios, cut at importance_cap."""


class Algorithm(Section):
    """The mathematics; sizes and rates are in `training`."""

    name: Name
    estimator: Estimator
    advantage_scale: AdvantageScale
    clip_low: Annotated[float, Field(ge=0, lt=1)]
    """The probability ratio is clipped to [1 - clip_low, 1 + clip_high]."""
    clip_high: Annotated[float, Field(ge=0)]
    loss_aggregation: LossAggregation
    kl_estimator: KlEstimator
    """Form of the penalty whose size is training.kl_coef."""
    importance_correction: ImportanceCorrection
    importance_cap: Annotated[float, Field(gt=0)]
    """Largest weight of the importance correction."""
    mask_truncated: bool
    """Whether truncated episodes are left out of the loss."""
    dynamic_sampling: bool
    """Whether groups without variance are replaced (DAPO, arXiv:2503.14476)."""

    @model_validator(mode="after")
    def _rloo_is_not_scaled(self) -> Algorithm:
        if self.estimator is Estimator.RLOO and self.advantage_scale is not AdvantageScale.NONE:
            raise ValueError("estimator=rloo divides by nothing: set advantage_scale=none")
        return self
