"""The mathematics of an update; sizes and rates are in `training`."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from xp.spec.judge import KeyName, Url
from xp.spec.section import (
    LARGEST,
    Commit,
    Count,
    Fraction,
    LocalPath,
    ModulePath,
    Name,
    NotNegative,
    Positive,
    Section,
)


class Estimator(StrEnum):
    """The baseline that is taken from an episode's reward."""

    GRPO = "grpo"
    """The mean of its group (arXiv:2402.03300)."""
    RLOO = "rloo"
    """The mean of its group without itself (arXiv:2402.14740)."""
    REINFORCE_PP = "reinforce_pp"
    """The mean over all trained tokens of a rollout step (arXiv:2501.03262)."""
    REINFORCE_PP_BASELINE = "reinforce_pp_baseline"
    """The mean of its group, then that over all trained tokens of a rollout step (arXiv:2501.03262)."""
    MAXRL = "maxrl"
    """The mean of its group, by which the centred reward is divided too (arXiv:2602.02710)."""
    GAE = "gae"
    """Generalized advantage estimation with a critic, token by token (arXiv:1506.02438)."""
    CUSTOM = "custom"
    """Computed by the user's function `advantage_fn`."""


class AdvantageScale(StrEnum):
    """Advantage normalisation: the divisor of the centred reward."""

    GROUP_STD = "group_std"
    BATCH_STD = "batch_std"
    """The standard deviation of the step's rewards; with `estimator: reinforce_pp`, `reinforce_pp_baseline` and `gae`
    that of the advantages over all trained tokens of the step."""
    NONE = "none"


class PolicyLoss(StrEnum):
    """Loss of a token, from its probability ratio and its advantage."""

    CLIP = "clip"
    """The smaller of the clipped and the plain ratio, times the advantage (PPO, arXiv:1707.06347)."""
    CISPO = "cispo"
    """The clipped ratio as a constant weight of the log-probability; clipped tokens keep a gradient
    (arXiv:2506.13585)."""

    SAPO = "sapo"
    """A sigmoid of the ratio with a temperature by the advantage's sign, in place of the clip (arXiv:2511.20347)."""


class RatioLevel(StrEnum):
    """Unit of the probability ratio between the policy and the one that sampled: a token or a whole episode."""

    TOKEN = "token"
    SEQUENCE = "sequence"
    """The geometric mean over an episode's trained tokens, the same for all of them (GSPO, arXiv:2507.18071)."""


class LossAggregation(StrEnum):
    """Averaging of the policy loss."""

    TOKEN_MEAN = "token_mean"
    """All trained tokens of an optimizer update."""
    SEQUENCE_MEAN = "sequence_mean"
    """Per-episode token means, then the mean over episodes (GRPO's paper, arXiv:2402.03300)."""
    CONSTANT = "constant"
    """Sum over tokens divided by episodes x `loss_length` (Dr. GRPO, arXiv:2503.20783)."""


class KlEstimator(StrEnum):
    """Schulman's estimators of KL(policy || reference), http://joschu.net/blog/kl-approx.html."""

    K1 = "k1"
    K2 = "k2"
    K3 = "k3"


class ImportanceCorrection(StrEnum):
    """Weight of a token's policy loss for the gap between the engine and the trainer, whose ratio is the trainer's
    probability before the update divided by the engine's (https://fengyao.notion.site/off-policy-rl)."""

    NONE = "none"
    TOKEN_TRUNCATE = "token_truncate"
    """The token's ratio, clamped to the bounds (TIS)."""
    SEQUENCE_TRUNCATE = "sequence_truncate"
    """The product of the ratios of an episode's tokens, clamped to the bounds; without those that
    `importance_mask=token` leaves out."""


class ImportanceMask(StrEnum):
    """Unit whose policy loss is left out if its ratio of trainer to engine is beyond the bounds; it still counts in the
    divisors of means."""

    NONE = "none"
    TOKEN = "token"
    """A token, by its ratio (IcePop, arXiv:2510.18855)."""
    SEQUENCE = "sequence"
    """An episode, by the product of the ratios of its trained tokens (MIS)."""
    GEOMETRIC = "geometric"
    """An episode, by the geometric mean of these ratios."""


class RatioFrom(StrEnum):
    """Source of the old log-probabilities in the probability ratio that is clipped."""

    TRAINER = "trainer"
    """The trainer's own, computed before the first update."""
    ENGINE = "engine"
    """Log-probabilities that the engine returned with its tokens."""


class Critic(Section):
    """Value network with the policy's architecture and initial weights."""

    discount: Annotated[float, Field(gt=0, le=1)]
    """gamma: discount factor per token."""
    gae_lambda: Fraction
    """lambda: 0 is the one-step temporal difference, 1 the whole return (arXiv:1506.02438)."""
    value_clip: Positive
    """Largest move of a value in an update, as in PPO's own code (github.com/openai/baselines, ppo2)."""


class Sapo(Section):
    """Soft gates of SAPO: 4/t sigmoid(t (ratio - 1)) (arXiv:2511.20347)."""

    temperature_positive: Positive
    """t of tokens with an advantage above 0."""
    temperature_negative: Positive
    """t of the others."""


class OverlongSpec(Section):
    """Soft punishment of long responses (DAPO, arXiv:2503.14476, eq. 13)."""

    buffer_tokens: Count
    """Last tokens before training.max_response_tokens, over which the penalty grows linearly from 0."""
    factor: Positive
    """Penalty at training.max_response_tokens; the paper's is 1."""


class Distill(Section):
    """On-policy distillation: a teacher scores the tokens that the policy wrote (arXiv:2306.13649, and
    https://thinkingmachines.ai/blog/on-policy-distillation)."""

    teacher: LocalPath
    """Model that scores the tokens: a Hugging Face id or directory (`runs/RUN/model`), or with `url` its name there.
    It must have the policy's vocabulary."""
    revision: Commit | None
    """Commit of a hub's model; xp looks it up for a branch or tag. None: the newest when the model is loaded."""
    url: Url | None
    """Address of a vLLM server with the teacher, up to `/v1`. None means that the trainer loads the teacher."""
    key: KeyName | None
    """Name of the variable with that server's key; never the key."""
    coef: Positive
    """Factor of the difference of the log-probabilities, teacher minus policy, in nats, in a token's advantage (1: the
    reverse KL's own gradient, as in Thinking Machines' and Slime's distillation)."""
    beside_reward: bool
    """Adds the difference to the advantage of the environment's reward; false: the reward is recorded only."""


class Algorithm(Section):
    """The mathematics; sizes and rates are in `training`."""

    name: Name
    estimator: Estimator
    advantage_fn: ModulePath | None
    """`package.module:function` of your own (see xp.episode.advantages), where the estimator is `custom`."""
    critic: Critic | None
    """Value network; only with `estimator: gae`."""
    distill: Distill | None
    """Distillation from a teacher, with any estimator but `gae`. None means that there is none."""
    advantage_scale: AdvantageScale
    policy_loss: PolicyLoss
    sapo: Sapo | None
    """Temperatures; only with `policy_loss: sapo`, which has no clip."""
    ratio_level: RatioLevel
    clip_low: Annotated[float, Field(ge=0, le=1)]
    """The probability ratio is clipped to [1 - clip_low, 1 + clip_high]; 1: no lower bound."""
    clip_high: NotNegative
    dual_clip: Annotated[float | None, Field(gt=1, le=LARGEST)]
    """Largest probability ratio that counts of a token with a negative advantage, which clip_high does not bound
    (dual-clip PPO, arXiv:1912.09729), at least 1 + clip_high. None means no bound."""
    loss_aggregation: LossAggregation
    loss_length: Count | None
    """Tokens by which `loss_aggregation=constant` divides an episode's sum. None means training.max_response_tokens.
    Adam hardly sees such a factor: only training.max_grad_norm and a penalty that is not divided by it do."""
    kl_estimator: KlEstimator
    """Form of the penalty whose size is training.kl_coef."""
    use_kl_in_reward: bool
    """Subtracts the penalty from the rewards of the trained tokens, before the baseline, instead of adding it to the
    loss."""
    importance_correction: ImportanceCorrection
    importance_lower: Fraction
    """Lower bound of the weight's ratio, inclusive. 0 means that there is none."""
    importance_upper: Annotated[float, Field(ge=1, le=1e8)]
    """Upper bound of the weight's ratio, inclusive."""
    importance_mask: ImportanceMask
    mask_lower: Fraction
    """Lower bound of the mask's ratio, inclusive. 0 means that there is none."""
    mask_upper: Annotated[float, Field(ge=1, le=1e8)]
    """Upper bound of the mask's ratio, inclusive."""
    ratio_from: RatioFrom
    mask_truncated: bool
    """Leaves truncated episodes out of the loss: those that a limit of turns or tokens ended,
    `training.max_tokens_per_turn` included."""
    overlong: OverlongSpec | None
    """Penalty that is added to the reward of the training's episodes, never of evaluations. None means that there is
    none. Their length includes tools' results, like training.max_response_tokens."""
    dynamic_sampling: bool
    """Replaces groups without variance by groups of the next tasks (DAPO, arXiv:2503.14476)."""
    max_sample_batches: Annotated[int, Field(ge=1, le=100)]
    """Largest number of rounds of dynamic sampling in a step, each of `training.generation_prompts` tasks; a step that
    they do not fill ends the run (exit code 16)."""
    zero_variance_filter: bool
    """Leaves groups without variance out of the loss, of its divisor too."""

    @property
    def is_corrected(self) -> bool:
        """Whether the gap between engine and trainer changes the policy loss, by a weight or a mask."""
        return (self.importance_correction, self.importance_mask) != ("none", "none")

    def faults(self) -> Iterator[str]:
        expected, reason = SCALES.get(self.estimator, (self.advantage_scale, ""))
        if self.advantage_scale is not expected:
            yield (f"estimator={self.estimator} {reason}: set advantage_scale={expected}")
        for field, estimator in (("advantage_fn", Estimator.CUSTOM), ("critic", Estimator.GAE)):
            is_given = getattr(self, field) is not None
            is_needed = self.estimator is estimator
            if is_needed and not is_given:
                yield f"estimator={estimator} needs {field}: set it, or use another estimator"
            if is_given and not is_needed:
                yield f"{field} is for estimator={estimator}, not {self.estimator}: set {field}=null"
        for name in ("overlong", "use_kl_in_reward"):
            if self.estimator is Estimator.MAXRL and getattr(self, name):
                yield f"estimator=maxrl needs rewards of at least 0, and {name} lowers them: leave it out"
        is_sapo = self.policy_loss is PolicyLoss.SAPO
        if is_sapo and self.sapo is None:
            yield "policy_loss=sapo needs sapo: set algorithm=sapo, which has both"
        if self.sapo is not None and not is_sapo:
            yield f"sapo is for policy_loss=sapo, not {self.policy_loss}: set sapo=null, or algorithm=sapo"
        if is_sapo and (self.ratio_level is RatioLevel.SEQUENCE or self.dual_clip is not None):
            yield "policy_loss=sapo needs ratio_level=token and dual_clip=null: its gates are of tokens"
        yield from self._loss_faults()
        yield from self._teacher_faults()

    def _loss_faults(self) -> Iterator[str]:
        if self.loss_length is not None and self.loss_aggregation is not LossAggregation.CONSTANT:
            yield f"loss_length is for loss_aggregation=constant, not {self.loss_aggregation}: set loss_length=null"
        if self.policy_loss is PolicyLoss.CISPO and self.ratio_level is RatioLevel.SEQUENCE:
            yield "policy_loss=cispo needs ratio_level=token: set it, or set policy_loss=clip"
        correction = self.importance_correction
        if self.ratio_from is RatioFrom.ENGINE and correction is not ImportanceCorrection.NONE:
            yield (
                f"ratio_from=engine needs importance_correction=none, got {correction}: the clipped ratio to the engine"
                " has this factor already; set none (importance_mask can stay), or ratio_from=trainer"
            )
        if self.importance_mask is ImportanceMask.GEOMETRIC and self.mask_lower == 0:
            yield (
                "importance_mask=geometric needs both bounds, and near 1, since the geometric mean of an episode is:"
                " set mask_lower=0.99 and mask_upper=1.01, for example"
            )
        if self.dual_clip is not None and self.policy_loss is PolicyLoss.CISPO:
            yield (
                "policy_loss=cispo bounds every ratio by clip_high: set dual_clip=null, or policy_loss=clip"
            )
        if self.dual_clip is not None and self.dual_clip < 1 + self.clip_high:
            yield (
                f"dual_clip must be at least 1 + clip_high, which is {1 + self.clip_high:g}; got {self.dual_clip:g}"
            )

    def _teacher_faults(self) -> Iterator[str]:
        if self.distill is None:
            return
        if self.estimator is Estimator.GAE:
            yield "distill needs an estimator without a critic: set estimator=grpo and critic=null"
        for name in ("dynamic_sampling", "zero_variance_filter"):
            if getattr(self, name):
                yield (
                    f"{name} drops groups of equal rewards, from which a teacher still teaches: set it to false, or"
                    " distill=null"
                )
        if self.overlong is not None and not self.distill.beside_reward:
            yield (
                "overlong lowers the reward, which distill only records: set overlong=null, or"
                " distill.beside_reward=true"
            )
        if self.distill.key is not None and self.distill.url is None:
            yield "distill.key is for a server, and distill.url is null: set distill.url, or key=null"
        if self.distill.revision is not None and self.distill.url is not None:
            yield "distill.revision is of a loaded model, and distill.url names a server: set one to null"


_OVER_TOKENS = (
    AdvantageScale.BATCH_STD,
    "divides by the deviation over the trained tokens of a step",
)
SCALES = {
    Estimator.RLOO: (AdvantageScale.NONE, "divides by nothing"),
    Estimator.MAXRL: (AdvantageScale.NONE, "divides by the mean of the group"),
    **dict.fromkeys(
        (Estimator.REINFORCE_PP, Estimator.REINFORCE_PP_BASELINE, Estimator.GAE), _OVER_TOKENS
    ),
    Estimator.CUSTOM: (AdvantageScale.NONE, "is scaled by your own function"),
}
"""Estimator -> its only scale, and the reason."""
