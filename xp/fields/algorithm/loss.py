"""The section `algorithm`: the policy loss and the KL penalty.

Source of TRL's losses: trl 1.16.0, trl/trainer/grpo_trainer.py `_compute_loss`.
"""

from __future__ import annotations

from xp.fields import skyrl
from xp.fields.field import OWN, Column, Field, Native
from xp.fields.shared import has_kl, has_xp_estimator
from xp.fields.slime import native_estimator
from xp.fields.trl import TRL_MEANS
from xp.spec import Estimator, KlEstimator, LossAggregation, PolicyLoss, RatioLevel, RunSpec


def no_clip(spec: RunSpec) -> str:
    """Remark on a bound of the ratio's clipping for a loss that has no clipping; empty for other losses."""
    if spec.algorithm.policy_loss is PolicyLoss.SAPO:
        return "unused: the gates of sapo are soft"
    return ""


NO_SAPO = Column(implemented_by="nothing: the loss is another")


# arXiv:2506.09477: the gradient of k1 is that of the policy's own log-probability, whose mean is 0.
K1_IN_LOSS = (
    "algorithm.kl_estimator=k1 in the loss has an expected gradient of 0 on the policy's own tokens: it adds noise"
    " and does not hold the policy near the reference; set k2 or k3, or algorithm.use_kl_in_reward=true"
)


def _is_k1_in_loss(spec: RunSpec) -> bool:
    algorithm = spec.algorithm
    is_in_loss = has_kl(spec) and not algorithm.use_kl_in_reward
    return is_in_loss and algorithm.kl_estimator is KlEstimator.K1


# TRL
LOSS_TYPE = {
    LossAggregation.TOKEN_MEAN: "dapo",
    LossAggregation.SEQUENCE_MEAN: "grpo",
    LossAggregation.CONSTANT: "dr_grpo",
}
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


# SkyRL
LOSS_REDUCTION = {
    LossAggregation.TOKEN_MEAN: "token_mean",
    LossAggregation.SEQUENCE_MEAN: "sequence_mean",
    LossAggregation.CONSTANT: "seq_mean_token_sum_norm",
}


def _policy_loss(spec: RunSpec) -> str:
    if spec.algorithm.policy_loss is not PolicyLoss.CLIP:
        return spec.algorithm.policy_loss.value
    if spec.algorithm.ratio_level is RatioLevel.SEQUENCE:
        return "gspo"
    if spec.algorithm.dual_clip is None:
        return "regular"
    return "dual_clip"


def _clip_row(end: str) -> Column:
    """Column of a bound, which both losses write as 1 - low and 1 + high."""

    def render(spec: RunSpec) -> Native:
        is_cispo = spec.algorithm.policy_loss is PolicyLoss.CISPO
        loss = "cispo.cispo_eps_clip" if is_cispo else "eps_clip"
        return {f"{skyrl.ALGORITHM}.{loss}_{end}": getattr(spec.algorithm, f"clip_{end}")}

    return Column(render, implemented_by=no_clip)


def _loss_length(spec: RunSpec) -> Native:
    algorithm = spec.algorithm
    is_constant = algorithm.loss_aggregation is LossAggregation.CONSTANT
    length = algorithm.loss_length or spec.training.max_response_tokens
    return {f"{skyrl.ALGORITHM}.max_seq_len": length if is_constant else None}


# Slime
MEANS = "xp.backends.slime.worker.means"


def _of_loss(name: str, only: PolicyLoss | RatioLevel) -> Column:
    """Column of a choice of the policy loss; Slime's `ppo` selects a critic and a loss."""
    return Column(
        implemented_by=lambda s: f"--advantage-estimator {native_estimator(s)}",
        refuse_if=lambda s: (
            s.algorithm.estimator is Estimator.GAE and getattr(s.algorithm, name) is not only
        ),
        refuse=f"Slime's critic comes with PPO's own loss; set {only}, or use another algorithm.estimator",
        proof="slime::an_estimator_selects_the_loss_and_the_critic",
    )


LOSS = (
    Field(
        "algorithm.policy_loss",
        trl=Column(
            "loss_type",
            render_if=_has_mean,
            implemented_by=lambda s: (
                "" if _has_mean(s) else "loss_type, with algorithm.loss_aggregation"
            ),
        ),
        skyrl=Column(lambda s: {f"{skyrl.ALGORITHM}.policy_loss_type": _policy_loss(s)}),
        slime=_of_loss("policy_loss", PolicyLoss.CLIP),
    ),
    Field(
        "algorithm.sapo",
        trl=NO_SAPO,
        skyrl=NO_SAPO,
        slime=Column(
            refuse="Slime has no such policy loss; use algorithm=gspo or cispo, or backend=trl or skyrl",
            proof="slime::it_has_no_sapo",
        ),
    ),
    Field(
        "algorithm.sapo.temperature_positive",
        trl="sapo_temperature_pos",
        skyrl=f"{skyrl.ALGORITHM}.sapo.tau_pos",
    ),
    Field(
        "algorithm.sapo.temperature_negative",
        trl="sapo_temperature_neg",
        skyrl=f"{skyrl.ALGORITHM}.sapo.tau_neg",
    ),
    Field(
        "algorithm.ratio_level",
        trl="importance_sampling_level",
        skyrl=Column(implemented_by="trainer.algorithm.policy_loss_type, with policy_loss"),
        slime=_of_loss("ratio_level", RatioLevel.TOKEN),
    ),
    Field(
        "algorithm.clip_low",
        trl=Column(
            "epsilon",
            implemented_by=no_clip,
            refuse_if=lambda s: (
                s.algorithm.policy_loss is PolicyLoss.CISPO and s.algorithm.clip_low != 1
            ),
            refuse="TRL's cispo has no lower bound; set 1, or use backend=skyrl or slime",
            proof="trl::cispo_has_no_lower_bound",
        ),
        skyrl=_clip_row("low"),
        slime="--eps-clip",
    ),
    Field(
        "algorithm.clip_high",
        # For cispo the largest weight itself, for others its distance from 1.
        trl=Column(
            lambda s: {
                "epsilon_high": s.algorithm.clip_high
                + (s.algorithm.policy_loss is PolicyLoss.CISPO)
            },
            implemented_by=no_clip,
        ),
        skyrl=_clip_row("high"),
        slime="--eps-clip-high",
    ),
    Field(
        "algorithm.dual_clip",
        # TRL bounds the ratio of all tokens before it clips; for positive advantages clip_high is the smaller bound.
        trl="delta",
        skyrl=Column(
            f"{skyrl.ALGORITHM}.clip_ratio_c",
            render_if=lambda s: s.algorithm.dual_clip is not None,
            implemented_by="trainer.algorithm.policy_loss_type, with policy_loss",
            refuse_if=lambda s: (
                s.algorithm.dual_clip is not None and s.algorithm.ratio_level is RatioLevel.SEQUENCE
            ),
            refuse="SkyRL's gspo has no dual clip; set ratio_level=token or dual_clip=null, or use backend=trl or slime",
            proof="skyrl::gspo_has_no_dual_clip",
        ),
        slime="--eps-clip-c",
    ),
    Field(
        "algorithm.loss_aggregation",
        trl=Column(
            "loss_type",
            LOSS_TYPE.get,
            render_if=lambda s: not _has_mean(s),
            implemented_by=lambda s: (
                f"loss_type={s.algorithm.policy_loss}; {TRL_MEANS}" if _has_mean(s) else TRL_MEANS
            ),
            refuse=_other_aggregation,
            proof="trl::a_loss_has_one_mean",
        ),
        skyrl=Column(f"{skyrl.ALGORITHM}.loss_reduction", LOSS_REDUCTION.get),
        # xp divides the token mean's sums by another number.
        slime=Column(
            lambda s: {
                "--calculate-per-token-loss": s.algorithm.loss_aggregation
                is not LossAggregation.SEQUENCE_MEAN
            },
            implemented_by=MEANS,
            refuse_if=lambda s: (
                s.algorithm.loss_aggregation is LossAggregation.CONSTANT
                and s.training.entropy_coef > 0
            ),
            refuse="the constant would divide Slime's entropy bonus too; set training.entropy_coef=0, token_mean or"
            " sequence_mean, or use backend=trl or skyrl",
            proof=OWN,
        ),
    ),
    Field(
        "algorithm.loss_length",
        trl=Column(
            implemented_by=lambda s: (
                TRL_MEANS if s.algorithm.loss_length is not None else "max_completion_length"
            )
        ),
        skyrl=Column(_loss_length),
        slime=Column(implemented_by=MEANS),
    ),
    Field(
        "algorithm.kl_estimator",
        # TRL has only k3, and by default weights it by the ratio.
        trl=Column(
            {"use_bias_correction_kl": False},
            refuse_if=lambda s: has_kl(s) and s.algorithm.kl_estimator is not KlEstimator.K3,
            refuse="TRL has the k3 estimator only; set k3, or training.kl_coef=0",
            proof="trl::the_penalty_is_k3_and_a_part_of_the_loss",
        ),
        skyrl=Column(
            f"{skyrl.ALGORITHM}.kl_estimator_type",
            note="k3 is cut at 10, and its log-ratio at 20.",
            note_if=has_kl,
            proof="skyrl::k3_is_cut",
        ),
        # low_var_kl is k3 clamped to 10; k3 is the exact estimator.
        slime="--kl-loss-type",
        xp=Column(note_if=_is_k1_in_loss, note=K1_IN_LOSS),
    ),
    Field(
        "algorithm.use_kl_in_reward",
        trl=Column(
            refuse="TRL has the rewards before the log-probabilities; set false, which puts the penalty into the loss, or"
            " use backend=skyrl",
            proof="trl::the_penalty_is_k3_and_a_part_of_the_loss",
        ),
        skyrl=Column(
            lambda s: {
                f"{skyrl.ALGORITHM}.use_kl_in_reward": (
                    s.algorithm.distill is not None or (s.algorithm.use_kl_in_reward and has_kl(s))
                ),
                f"{skyrl.ALGORITHM}.kl_ctrl.type": "fixed",
            },
            refuse_if=lambda s: (
                s.algorithm.use_kl_in_reward and s.algorithm.critic is None and has_xp_estimator(s)
            ),
            refuse=lambda s: (
                f"estimator={s.algorithm.estimator} reads one reward of an episode, not of each token; set false"
            ),
            proof=OWN,
        ),
        slime=Column(
            refuse="xp computes the advantages where Slime has no log-probabilities; set false, which puts the penalty into"
            " the loss, or use backend=skyrl",
            proof=OWN,
        ),
    ),
)
