"""Rows of the section `sft`: keys of SkyRLTrainConfig, and what xp.backends.skyrl.worker.sft puts in SFTConfig."""

from __future__ import annotations

from xp.backends.skyrl.control.constraints import is_megatron
from xp.backends.skyrl.control.keys import ALGORITHM, MICRO_BATCHES, Keys
from xp.backends.skyrl.control.rows.training import (
    SCHEDULER,
    SCHEDULES,
    no_rate,
    other_schedule,
    warmup_note,
)
from xp.planning.batch import batch_shape
from xp.planning.rows import Row
from xp.planning.shared_rows import sft_updates, uneven_sft_batch
from xp.spec import RunSpec

OPTIMIZER = "trainer.policy.optimizer_config"


def ranks(spec: RunSpec) -> int:
    """Ranks that share a batch. Source: skyrl 0.4.0, sft_trainer.py `_validate_batch_parallelism`."""
    batch = batch_shape(spec)
    return (
        batch.num_nodes
        * batch.per_node
        // (batch.tensor * batch.pipeline if is_megatron(spec) else 1)
    )


def _fixed(spec: RunSpec) -> Keys:
    """Keys of a fine-tuning on all accelerators, with no engine, no reference and the loss of temperature 1."""
    return {
        f"{ALGORITHM}.temperature": 1.0,
        f"{ALGORITHM}.use_kl_loss": False,
        f"{ALGORITHM}.use_kl_in_reward": False,
        f"{ALGORITHM}.use_entropy_loss": False,
        "trainer.fully_async.enabled": False,
        "trainer.placement.colocate_all": False,
        "trainer.placement.policy_num_nodes": batch_shape(spec).num_nodes,
        "trainer.placement.policy_num_gpus_per_node": batch_shape(spec).per_node,
    }


SFT = (
    Row("", _fixed),
    *sft_updates("num_steps of SkyRL's SFTConfig"),
    Row(
        "sft.batch_size",
        implemented_by="batch_size of SkyRL's SFTConfig is set by the stage's program",
        refuse=lambda s: uneven_sft_batch(ranks(s), s),
    ),
    Row(
        "sft.micro_batch_size",
        lambda s: dict.fromkeys(
            MICRO_BATCHES, 1 if s.sft.max_tokens_per_micro_batch else s.sft.micro_batch_size
        ),
    ),
    Row(
        "sft.max_tokens_per_micro_batch",
        lambda s: {"trainer.max_tokens_per_microbatch": s.sft.max_tokens_per_micro_batch or -1},
    ),
    Row("sft.learning_rate", f"{OPTIMIZER}.lr"),
    Row(
        "sft.lr_schedule",
        lambda s: {f"{OPTIMIZER}.scheduler": SCHEDULER[s.sft.lr_schedule]},
        refuse=lambda s: other_schedule(s, s.sft.lr_schedule),
    ),
    Row(
        "sft.min_learning_rate",
        implemented_by=lambda s: "nothing: the rate is constant" if is_megatron(s) else SCHEDULES,
    ),
    Row(
        "sft.warmup_updates",
        f"{OPTIMIZER}.num_warmup_steps",
        note=lambda s: warmup_note(s, s.sft.warmup_updates),
        refuse=lambda s: no_rate(s, s.sft.warmup_updates, s.sft.num_updates or 0),
    ),
    Row("sft.checkpoint_every", "trainer.ckpt_interval"),
)
