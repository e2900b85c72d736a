"""The section `training`: optimizer, learning rates and penalties."""

from __future__ import annotations

from xp.fields import skyrl
from xp.fields.field import OWN, Column, Field, Native
from xp.fields.shared import has_critic, has_kl, is_megatron, is_on_cpu, num_steps
from xp.fields.skyrl import (
    MIN_RATE,
    SCHEDULER,
    SCHEDULES,
    no_rate,
    optimizer_keys,
    other_schedule,
    warmup_note,
)
from xp.fields.slime import warmup_flags
from xp.fields.trl import NO_CRITIC, is_sharded
from xp.spec import LossAggregation, RunSpec
from xp.spec.training import Optimizer
from xp.worker import slime_names


def _decays(spec: RunSpec) -> bool:
    return spec.training.weight_decay > 0


# TRL
NOT_TRIED_SHARDED = " Not tried: bitsandbytes with the sharded tensors of FSDP2."


def _schedule(spec: RunSpec) -> str:
    """Name of the schedule; Hugging Face's `constant` ignores warm-up, unlike `constant_with_warmup`."""
    if spec.training.lr_schedule == "constant" and spec.training.warmup_updates:
        return "constant_with_warmup"
    return spec.training.lr_schedule.value


def _synced(spec: RunSpec) -> Native:
    """The policy itself is the new reference: TRL's default is a mixture of both."""
    every = spec.training.reference_every
    keys = {"sync_ref_model": every is not None, "ref_model_mixup_alpha": 1.0}
    if every is not None:
        keys["ref_model_sync_steps"] = every * spec.training.all_updates_per_step
    return keys


def _no_synced(spec: RunSpec) -> str | None:
    if spec.training.reference_every is None or spec.model.lora is None:
        return None
    return "TRL's reference of adapters is the model without them; set null, or model.lora=null"


def _optimizer(spec: RunSpec) -> Native:
    optimizer = spec.training.optimizer
    if optimizer is not Optimizer.ADAMW:
        return {"optim": optimizer.value}
    return {"optim": "adamw_torch" if is_on_cpu(spec) else "adamw_torch_fused"}


def _optimizer_note(spec: RunSpec) -> str:
    if spec.training.optimizer is Optimizer.SGD:
        return "It has no moments: adam_beta1, adam_beta2 and adam_eps have no effect."
    # transformers 5.23, trainer_optimizer.py `_get_bitsandbytes_optimizer`.
    if spec.training.optimizer is Optimizer.ADAMW_8BIT:
        return (
            f"Moments of embeddings stay in 32 bits.{NOT_TRIED_SHARDED if is_sharded(spec) else ''}"
        )
    return ""


# SkyRL
FSDP_ADAM_EPS = 1e-8
"""PyTorch's AdamW default: SkyRL's FSDP strategy has no key for it (fsdp_strategy.py `_fsdp_init_train_model`)."""


# Slime
def _warmup(spec: RunSpec) -> str | None:
    """Returns why the warm-up is too long; None if it is not. Where the number of steps is not known yet, the train
    stage checks it."""
    updates = (num_steps(spec) or 0) * spec.training.updates_per_step
    if 0 < updates < spec.training.warmup_updates:
        return slime_names.warm_up_too_long(updates)
    return None


RATES = (
    Field(
        "training.optimizer",
        trl=Column(
            _optimizer,
            note=_optimizer_note,
            proof={
                "Moments of embeddings": "trl::embeddings_keep_moments_of_32_bits",
                "It has no moments": "trainers/trl_learning_rate::sgd_has_no_moments",
            },
        ),
        skyrl=Column(
            implemented_by="AdamW: PyTorch's under FSDP, Megatron's",
            only=Optimizer.ADAMW,
            refuse="SkyRL has AdamW alone: its FSDP strategy makes no other, and Megatron's distributed optimizer takes no"
            " other; set adamw, or use backend=trl",
            proof="skyrl::its_optimizer_is_adamw",
        ),
        # Source of the refusal: slime/backends/megatron_utils/arguments.py sets use_distributed_optimizer, and
        # megatron/core/optimizer/distrib_optimizer.py asserts Adam.
        slime=Column(
            {"--optimizer": "adam"},
            only=Optimizer.ADAMW,
            refuse="Slime always has Megatron's distributed optimizer, which takes Adam alone; set adamw, or use"
            " backend=trl",
            proof="slime::its_optimizer_is_adam",
        ),
    ),
    Field(
        "training.learning_rate",
        trl="learning_rate",
        skyrl="trainer.policy.optimizer_config.lr",
        slime="--lr",
    ),
    Field(
        "training.critic_learning_rate",
        trl=Column(implemented_by=NO_CRITIC),
        skyrl=Column(
            lambda s: (
                {
                    "trainer.critic.optimizer_config.lr": s.training.critic_learning_rate
                    or s.training.learning_rate
                }
                if has_critic(s)
                else {}
            ),
            implemented_by=lambda s: "" if has_critic(s) else "nothing: there is no critic",
        ),
        slime=Column(
            implemented_by=lambda s: (
                "nothing: there is no critic"
                if s.algorithm.critic is None
                else "lr of the role critic in --megatron-config-path is set by the stage's program"
            )
        ),
    ),
    Field(
        "training.lr_schedule",
        trl=Column(lambda s: {"lr_scheduler_type": _schedule(s)}),
        skyrl=Column(
            lambda s: optimizer_keys(s, "scheduler", SCHEDULER[s.training.lr_schedule]),
            refuse=lambda s: other_schedule(s, s.training.lr_schedule),
            proof="skyrl::megatrons_rate_is_constant",
        ),
        slime="--lr-decay-style",
    ),
    Field(
        "training.min_learning_rate",
        trl=Column(implemented_by="xp's schedule in TRL's trainer"),
        skyrl=MIN_RATE,
        slime="--min-lr",
    ),
    Field(
        "training.warmup_updates",
        trl=Column(
            "warmup_steps", implemented_by="xp's schedule in TRL's trainer, which begins at 1/N"
        ),
        skyrl=Column(
            lambda s: optimizer_keys(s, "num_warmup_steps", s.training.warmup_updates),
            implemented_by=lambda s: "" if is_megatron(s) else f"{SCHEDULES}, which begins at 1/N",
            note=lambda s: warmup_note(s, s.training.warmup_updates),
            refuse=lambda s: no_rate(
                s, s.training.warmup_updates, (num_steps(s) or 0) * s.training.all_updates_per_step
            ),
            proof={
                "elsewhere k/N": "skyrl::megatrons_warm_up_begins_at_0",
                "": "slime::a_warm_up_ends_before_the_training",
            },
        ),
        slime=Column(
            lambda s: warmup_flags(s.training),
            refuse=_warmup,
            proof="slime::a_warm_up_ends_before_the_training",
        ),
    ),
    Field(
        "training.weight_decay",
        trl=Column(
            "weight_decay",
            note_if=_decays,
            note="Biases and norms are excluded.",
            proof="trl::biases_and_norms_do_not_decay",
        ),
        skyrl=Column(
            lambda s: optimizer_keys(s, "weight_decay", s.training.weight_decay),
            note_if=lambda s: _decays(s) and not is_megatron(s),
            note="Biases and norms decay too.",
            proof="skyrl::all_weights_decay_under_fsdp2",
        ),
        slime=Column(
            lambda s: {
                "--weight-decay": s.training.weight_decay,
                "--weight-decay-incr-style": "constant",
            },
            note_if=_decays,
            note="Biases and norms are excluded.",
            proof="slime::biases_and_norms_do_not_decay",
        ),
    ),
    Field(
        "training.adam_beta1",
        trl="adam_beta1",
        # SkyRL has one list for both of Adam's betas.
        skyrl=Column(
            lambda s: optimizer_keys(
                s, "adam_betas", [s.training.adam_beta1, s.training.adam_beta2]
            )
        ),
        slime="--adam-beta1",
    ),
    Field(
        "training.adam_beta2",
        trl="adam_beta2",
        skyrl=Column(implemented_by="trainer.policy.optimizer_config.adam_betas, with adam_beta1"),
        slime="--adam-beta2",
    ),
    Field(
        "training.adam_eps",
        trl="adam_epsilon",
        skyrl=Column(
            f"{skyrl.MEGATRON[0]}.optimizer_config_kwargs.adam_eps",
            render_if=is_megatron,
            implemented_by=lambda s: (
                "" if is_megatron(s) else f"torch.optim.AdamW's own {FSDP_ADAM_EPS}"
            ),
            refuse_if=lambda s: not is_megatron(s) and s.training.adam_eps != FSDP_ADAM_EPS,
            refuse=f"SkyRL's FSDP uses PyTorch's {FSDP_ADAM_EPS} and has no key for it; set it to {FSDP_ADAM_EPS}, or"
            " backend.parallel.strategy=megatron",
            proof="skyrl::its_optimizer_is_adamw",
        ),
        slime="--adam-eps",
    ),
    Field(
        "training.max_grad_norm",
        trl="max_grad_norm",
        skyrl=Column(lambda s: optimizer_keys(s, "max_grad_norm", s.training.max_grad_norm)),
        slime="--clip-grad",
    ),
    Field(
        "training.kl_coef",
        trl="beta",
        # Under FSDP, xp.backends.skyrl.worker.workers averages the penalty like the loss.
        skyrl=Column(
            lambda s: {
                f"{skyrl.ALGORITHM}.use_kl_loss": has_kl(s) and not s.algorithm.use_kl_in_reward,
                f"{skyrl.ALGORITHM}.kl_loss_coef": s.training.kl_coef,
            },
            note_if=lambda s: has_kl(s) and is_megatron(s),
            note="The penalty is a mean over all episodes, void ones too, of their token means.",
            proof="skyrl::megatrons_terms_are_means_of_micro_batches",
        ),
        slime=Column(
            lambda s: {
                "--use-kl-loss": has_kl(s),
                "--kl-loss-coef": s.training.kl_coef,
                # The penalty as a part of the reward has no effect with grpo.
                "--kl-coef": 0.0,
            }
        ),
    ),
    Field("training.reference", xp="xp.worker.places"),
    Field(
        "training.reference_every",
        trl=Column(
            _synced, refuse=_no_synced, proof="trl::the_reference_of_adapters_is_not_synchronized"
        ),
        # SkyRL copies it once an epoch, and xp's view of the tasks is one epoch.
        skyrl=Column(
            refuse="SkyRL copies the reference only between epochs; set null, or use backend=trl or slime",
            proof="skyrl::the_reference_is_copied_between_epochs",
        ),
        slime="--ref-update-interval",
        xp=Column(
            refuse_if=lambda s: s.training.reference_every is not None and s.training.kl_coef == 0,
            refuse="training.kl_coef=0 has no reference to copy into; set null, or training.kl_coef",
            proof=OWN,
        ),
    ),
    Field(
        "training.entropy_coef",
        trl=Column("entropy_coef", implemented_by="xp.backends.trl.worker.means"),
        skyrl=Column(
            lambda s: {
                f"{skyrl.ALGORITHM}.use_entropy_loss": s.training.entropy_coef > 0,
                f"{skyrl.ALGORITHM}.entropy_loss_coef": s.training.entropy_coef,
            },
            note_if=lambda s: s.training.entropy_coef > 0 and is_megatron(s),
            note="The bonus is a token mean per micro-batch, not one of the update.",
            proof="skyrl::megatrons_terms_are_means_of_micro_batches",
        ),
        slime=Column(
            "--entropy-coef",
            note_if=lambda s: (
                s.training.entropy_coef > 0
                and s.algorithm.loss_aggregation is LossAggregation.SEQUENCE_MEAN
            ),
            note="The bonus is a mean over episodes of their token means.",
            proof="slime::the_entropy_is_a_mean_over_episodes",
        ),
    ),
)
