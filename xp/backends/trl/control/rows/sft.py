"""Rows of the section `sft`: keyword arguments of trl.SFTConfig."""

from __future__ import annotations

from xp.backends.trl.control.constraints import world_size
from xp.planning.rows import Row
from xp.planning.shared_rows import uneven_sft_batch

SFT = (
    Row("sft.epochs", lambda s: {"num_train_epochs": s.sft.epochs or 1}),
    Row("sft.num_updates", lambda s: {"max_steps": s.sft.num_updates or -1}),
    Row(
        "sft.batch_size",
        lambda s: {
            "gradient_accumulation_steps": s.sft.batch_size
            // (s.sft.micro_batch_size * world_size(s))
        },
        refuse=lambda s: uneven_sft_batch(world_size(s), s),
    ),
    Row(
        "sft.micro_batch_size",
        # The loss of a batch is a mean, so that the held-out loss needs each episode's own.
        lambda s: {
            "per_device_train_batch_size": s.sft.micro_batch_size,
            "per_device_eval_batch_size": 1,
        },
    ),
    Row(
        "sft.max_tokens_per_micro_batch",
        refuse="TRL's micro-batches count episodes; set it to null and use sft.micro_batch_size",
    ),
    Row("sft.learning_rate", "learning_rate"),
    Row("sft.checkpoint_every", "save_steps"),
)
