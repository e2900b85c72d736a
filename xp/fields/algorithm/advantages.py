"""The section `algorithm`: baselines, critic and teacher."""

from __future__ import annotations

from xp.fields import skyrl
from xp.fields.field import OWN, Column, Field, Native, by_xp
from xp.fields.shared import has_critic, has_kl, has_xp_estimator, is_megatron, is_to_engine
from xp.fields.slime import SLIME_ADVANTAGES, native_estimator
from xp.fields.trl import NO_CRITIC, TRL_MEANS
from xp.spec import AdvantageScale, Estimator, RunSpec
from xp.worker.skyrl_names import XP_ESTIMATOR
from xp.worker.slime_names import OVER_TRAINED_TOKENS

# TRL
SCALE = {
    AdvantageScale.GROUP_STD: "group",
    AdvantageScale.BATCH_STD: "batch",
    AdvantageScale.NONE: "none",
}
OTHER_ESTIMATORS = {
    Estimator.RLOO: "includes every episode in the mean of its group",
    Estimator.MAXRL: "divides by the deviation of a group, not by its mean",
    Estimator.GAE: "has no critic",
}
"""Estimator -> difference of TRL's GRPOTrainer from it."""
RULES = "xp.episode.advantages"


# SkyRL
def _advantages(spec: RunSpec) -> str:
    if has_xp_estimator(spec):
        return "xp.backends.skyrl.worker.advantages"
    return ""


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
    if has_kl(spec):
        return "SkyRL's one reference model is the teacher; set training.kl_coef=0, or use backend=trl or slime"
    return None


# Slime
def _of_critic(name: str, flag: str, note: str = "") -> Column:
    """Column of a number of the critic."""
    return Column(
        lambda s: {flag: None if s.algorithm.critic is None else getattr(s.algorithm.critic, name)},
        note=note,
        proof=OWN,
    )


def _distill(spec: RunSpec) -> Native:
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


def _other_estimator(spec: RunSpec) -> str | None:
    other = OTHER_ESTIMATORS.get(spec.algorithm.estimator)
    if other is None:
        return None
    return f"TRL's GRPOTrainer {other}; use algorithm=grpo, or backend=skyrl or slime"


ADVANTAGES = (
    Field("algorithm.name", xp="xp.execution"),
    Field(
        "algorithm.estimator",
        trl=Column(
            implemented_by=lambda s: RULES if has_xp_estimator(s) else "GRPOTrainer's own",
            refuse=_other_estimator,
            proof={
                "includes every episode": "trl::its_baseline_is_the_mean_of_the_whole_group",
                "divides by the deviation": "trl::its_baseline_is_the_mean_of_the_whole_group",
                "has no critic": "trl::it_has_no_critic",
            },
        ),
        skyrl=Column(
            lambda s: {
                f"{skyrl.ALGORITHM}.advantage_estimator": XP_ESTIMATOR
                if has_xp_estimator(s)
                else s.algorithm.estimator.value
            },
            implemented_by=_advantages,
            refuse_if=lambda s: has_critic(s) and is_megatron(s),
            refuse="SkyRL has no critic under Megatron; set backend.parallel.strategy=fsdp2, or use algorithm=grpo",
            proof="skyrl::megatron_has_no_critic",
        ),
        slime=Column(
            lambda s: {"--advantage-estimator": native_estimator(s)},
            implemented_by=SLIME_ADVANTAGES,
        ),
    ),
    Field("algorithm.advantage_fn", xp="xp.episode.advantages"),
    Field(
        "algorithm.critic",
        trl=Column(implemented_by=NO_CRITIC),
        skyrl=Column(implemented_by="trainer.critic.model.path=null"),
        slime=Column(
            lambda s: {
                "--num-critic-only-steps": None if s.algorithm.critic is None else 0,
                "--custom-advantage-function-path": None
                if s.algorithm.critic is None
                else OVER_TRAINED_TOKENS,
            }
        ),
    ),
    Field(
        "algorithm.critic.discount",
        skyrl=Column(
            f"{skyrl.ALGORITHM}.gamma",
            note_if=lambda s: s.algorithm.critic is not None and s.algorithm.critic.discount < 1,
            note="Only the policy's tokens are discounted, not a tool's.",
            proof="trainers/skyrl_advantages::gae_is_the_recursion_over_what_the_policy_wrote",
        ),
        slime=_of_critic("discount", "--gamma"),
    ),
    Field(
        "algorithm.critic.gae_lambda",
        skyrl=f"{skyrl.ALGORITHM}.lambd",
        slime=_of_critic(
            "gae_lambda",
            "--lambd",
            "Over the tokens that the policy wrote, by xp.backends.slime.worker.gae.",
        ),
    ),
    Field(
        "algorithm.critic.value_clip",
        skyrl=f"{skyrl.ALGORITHM}.value_clip",
        slime=_of_critic("value_clip", "--value-clip"),
    ),
    Field(
        "algorithm.distill",
        # With that key SkyRL makes a reference model and computes its log-probabilities; xp's trainer takes no penalty.
        skyrl=Column(
            implemented_by="trainer.ref.model.path and xp's trainer, where it is set",
            refuse=_no_teacher,
            proof={
                "loads the teacher itself": OWN,
                "teacher needs FSDP2": OWN,
                "one reference model": "skyrl::there_is_one_reference_model",
            },
        ),
        slime=Column(
            _distill,
            implemented_by=lambda s: SLIME_ADVANTAGES if s.algorithm.distill is not None else "",
            note_if=lambda s: s.algorithm.distill is not None and is_to_engine(s),
            note="The policy's log-probabilities are the engine's, as in the ratio.",
            refuse_if=lambda s: (
                s.algorithm.distill is not None
                and s.algorithm.distill.url is None
                and not s.backend.convert_model
            ),
            refuse="Slime loads a teacher from a Megatron checkpoint: set backend.convert_model=true, which makes it, or"
            " set distill.url to a server with the teacher",
            proof={
                "the engine's, as in the ratio": "slime::distillation_has_the_log_probabilities_of_the_ratio",
                "from a Megatron checkpoint": "slime::a_teacher_is_a_megatron_checkpoint",
            },
        ),
        xp="xp.episode.advantages",
    ),
    *by_xp(
        {
            "algorithm.distill.revision": "xp.planning.stages",
            "algorithm.distill.url": "xp.worker.engines.teacher",
            "algorithm.distill.key": "xp.worker.engines.teacher",
        }
    ),
    Field(
        "algorithm.advantage_scale",
        trl=Column(
            "scale_rewards",
            SCALE.get,
            implemented_by=lambda s: RULES if has_xp_estimator(s) else TRL_MEANS,
        ),
        skyrl=Column(
            lambda s: {
                f"{skyrl.ALGORITHM}.grpo_norm_by_std": s.algorithm.advantage_scale
                is AdvantageScale.GROUP_STD
            },
            implemented_by=_advantages,
        ),
        slime=Column(
            lambda s: {
                "--disable-grpo-std-normalization": s.algorithm.advantage_scale
                is not AdvantageScale.GROUP_STD,
                # xp.backends.slime.worker.advantages has divided by the others already.
                "--normalize-advantages": s.algorithm.estimator is Estimator.GAE,
            },
            implemented_by=SLIME_ADVANTAGES,
        ),
    ),
)
