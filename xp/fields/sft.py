"""The section `sft`: native keys of the stage `sft`, which repeat keys of the training."""

from __future__ import annotations

from xp.fields.batch_shape import batch_shape
from xp.fields.field import OWN, Column, Field, by_xp
from xp.fields.shared import is_megatron
from xp.fields.skyrl import MICRO_BATCHES, MIN_RATE, SCHEDULER, no_rate, other_schedule, warmup_note
from xp.fields.slime import micro_batch, packing, sequence_length, warmup_flags
from xp.fields.trl import accumulation, world_size
from xp.spec import RunSpec
from xp.spec.sft import SOLVE
from xp.worker import slime_names
from xp.worker.slime_names import STEPS_FLAG


def uneven_sft_batch(ranks: int, spec: RunSpec) -> str | None:
    """Returns why the episodes of a fine-tuning's update cannot be divided among `ranks`; None if they can."""
    sft = spec.sft
    micro = sft.micro_batch_size if sft.max_tokens_per_micro_batch is None else 1
    # With no rank, the layout itself is refused.
    if not ranks or sft.batch_size % (micro * ranks) == 0:
        return None
    return (
        f"must be divisible by sft.micro_batch_size x data-parallel ranks = {micro} x {ranks}; got {sft.batch_size};"
        " set such a number"
    )


def sft_epochs(key: str) -> Column:
    """Column of a fine-tuning's epochs for a trainer whose stage computes its updates; `key`: what receives them."""
    steps = "epochs x (episodes / batch_size, rounded up)"
    return Column(implemented_by=f"{key} is set by the stage's program: {steps}")


def _long_example(spec: RunSpec) -> str | None:
    longest = spec.sft.max_tokens or 0
    most = spec.model.max_context_tokens
    if spec.sft.data is None or longest <= most:
        return None
    return f"{longest} is more than the {most} tokens of the context of model={spec.model.name}; lower it"


def _unsolvable(spec: RunSpec) -> str | None:
    if spec.sft.data != SOLVE:
        return None
    for name, member in spec.env.members.items():
        if ":" not in (member.serve or member.grader or ""):
            return (
                f"environment {name} has no class here (env.serve, env.grader), so no `solve`; name a function:"
                " sft.data=solve:module:function"
            )
    return None


# SkyRL
OPTIMIZER = "trainer.policy.optimizer_config"


def skyrl_ranks(spec: RunSpec) -> int:
    """Ranks that share a batch. Source: skyrl 0.4.0, sft_trainer.py `_validate_batch_parallelism`."""
    batch = batch_shape(spec)
    return batch.accelerators // (batch.tensor * batch.pipeline if is_megatron(spec) else 1)


# Slime
def slime_ranks(spec: RunSpec) -> int:
    """Data-parallel ranks of all accelerators."""
    batch = batch_shape(spec)
    return batch.accelerators // batch.model_parallel


def _long_warmup(spec: RunSpec) -> str | None:
    """Returns why the warm-up is too long; with epochs, the stage checks it."""
    updates = spec.sft.num_updates or spec.sft.warmup_updates
    if spec.sft.warmup_updates > updates:
        return slime_names.warm_up_too_long(updates)
    return None


SFT = (
    Field("sft.data", xp=Column(implemented_by="xp.planning.sft", refuse=_unsolvable, proof=OWN)),
    *by_xp(
        {
            "sft.min_reward": "xp.worker.demonstrations",
            "sft.per_task": "xp.worker.demonstrations",
            "sft.num_episodes": "xp.worker.demonstrations",
            "sft.thinking": "xp.worker.demonstrations",
            "sft.loss_on": "xp.worker.demonstrations",
        }
    ),
    Field(
        "sft.max_tokens",
        slime=Column(
            lambda s: (
                {}
                if s.sft.max_tokens is None
                else {"--seq-length": sequence_length(s, s.sft.max_tokens)}
            ),
            implemented_by="xp.worker.demonstrations",
        ),
        xp=Column(implemented_by="xp.worker.demonstrations", refuse=_long_example, proof=OWN),
    ),
    Field("sft.too_long", xp="xp.worker.demonstrations"),
    Field(
        "sft.epochs",
        trl=Column("num_train_epochs", lambda epochs: epochs or 1),
        skyrl=sft_epochs("num_steps of SkyRL's SFTConfig"),
        slime=sft_epochs(STEPS_FLAG),
    ),
    Field(
        "sft.num_updates",
        trl=Column("max_steps", lambda updates: updates or -1),
        skyrl=Column(implemented_by="num_steps of SkyRL's SFTConfig"),
        slime=Column(implemented_by=STEPS_FLAG),
    ),
    Field(
        "sft.batch_size",
        trl=Column(
            lambda s: accumulation(s, s.sft.batch_size, s.sft.micro_batch_size),
            refuse=lambda s: uneven_sft_batch(world_size(s), s),
            proof=OWN,
        ),
        skyrl=Column(
            implemented_by="batch_size of SkyRL's SFTConfig is set by the stage's program",
            refuse=lambda s: uneven_sft_batch(skyrl_ranks(s), s),
            proof=OWN,
        ),
        slime=Column(
            ("--rollout-batch-size", "--global-batch-size"),
            implemented_by="xp.backends.slime.worker.means, in the last update of an epoch",
            refuse=lambda s: uneven_sft_batch(slime_ranks(s), s),
            proof=OWN,
        ),
    ),
    Field(
        "sft.micro_batch_size",
        # The loss of a batch is a mean, so that the held-out loss needs each episode's own.
        trl=Column(
            lambda s: {
                "per_device_train_batch_size": s.sft.micro_batch_size,
                "per_device_eval_batch_size": 1,
            }
        ),
        skyrl=Column(
            lambda s: dict.fromkeys(
                MICRO_BATCHES, 1 if s.sft.max_tokens_per_micro_batch else s.sft.micro_batch_size
            )
        ),
        slime=Column(lambda s: micro_batch(s.sft)),
    ),
    Field(
        "sft.max_tokens_per_micro_batch",
        trl=Column(
            refuse="TRL's micro-batches count episodes; set it to null and use sft.micro_batch_size",
            proof="trl::micro_batches_count_episodes",
        ),
        skyrl=Column("trainer.max_tokens_per_microbatch", lambda tokens: tokens or -1),
        slime=Column(lambda s: packing(s.sft)),
    ),
    Field("sft.learning_rate", trl="learning_rate", skyrl=f"{OPTIMIZER}.lr", slime="--lr"),
    Field(
        "sft.lr_schedule",
        skyrl=Column(
            f"{OPTIMIZER}.scheduler",
            SCHEDULER.get,
            refuse=lambda s: other_schedule(s, s.sft.lr_schedule),
            proof="skyrl::megatrons_rate_is_constant",
        ),
        slime="--lr-decay-style",
        xp="xp.worker.learning_rate",
    ),
    Field(
        "sft.min_learning_rate",
        skyrl=MIN_RATE,
        slime="--min-lr",
        xp="xp.worker.learning_rate",
    ),
    Field(
        "sft.warmup_updates",
        skyrl=Column(
            f"{OPTIMIZER}.num_warmup_steps",
            note=lambda s: warmup_note(s, s.sft.warmup_updates),
            refuse=lambda s: no_rate(s, s.sft.warmup_updates, s.sft.num_updates or 0),
            proof={
                "elsewhere k/N": "skyrl::megatrons_warm_up_begins_at_0",
                "": "slime::a_warm_up_ends_before_the_training",
            },
        ),
        slime=Column(
            lambda s: warmup_flags(s.sft),
            refuse=_long_warmup,
            proof="slime::a_warm_up_ends_before_the_training",
        ),
        xp="xp.worker.learning_rate",
    ),
    Field(
        "sft.checkpoint_every",
        trl="save_steps",
        skyrl="trainer.ckpt_interval",
        slime="--save-interval",
    ),
    *by_xp(
        {
            "sft.held_out_fraction": "xp.worker.demonstrations",
            "sft.overrides": "xp.planning.native_keys",
        }
    ),
)
