"""Rows of the section `sft`: keys of SkyRLTrainConfig, and what xp.backends.skyrl.worker.sft puts in SFTConfig."""

from __future__ import annotations

from xp.backends.skyrl.control.constraints import is_megatron
from xp.backends.skyrl.control.keys import ALGORITHM, Keys
from xp.backends.skyrl.control.rows.training import SCHEDULER
from xp.backends.skyrl.worker.config import warm_up_too_long
from xp.planning.rows import SFT as COMMON
from xp.planning.rows import Row, uneven_sft_batch
from xp.spec import LrSchedule, RunSpec

OPTIMIZER = "trainer.policy.optimizer_config"


def ranks(spec: RunSpec) -> int:
    """Ranks that share a batch. Source: skyrl 0.4.0, sft_trainer.py `_validate_batch_parallelism`."""
    hardware, parallel = spec.hardware, spec.backend.parallel
    split = parallel.tensor * parallel.pipeline if is_megatron(spec) else 1
    return hardware.num_nodes * hardware.accelerators_per_node // split


def _no_schedule(spec: RunSpec) -> str | None:
    if not is_megatron(spec) or spec.sft.lr_schedule is LrSchedule.CONSTANT:
        return None
    return "SkyRL's Megatron supports only constant; set it, or backend.parallel.strategy=fsdp2"


def _no_rate(spec: RunSpec) -> str | None:
    updates, warmup = spec.sft.num_updates or 0, spec.sft.warmup_updates
    return warm_up_too_long(updates) if is_megatron(spec) and warmup >= updates > 0 and warmup else None


def _warmup_note(spec: RunSpec) -> str:
    return "Update k of a warm-up of N has (k-1)/N; elsewhere k/N." if is_megatron(spec) else ""


def _fixed(spec: RunSpec) -> Keys:
    """Keys of a fine-tuning on all accelerators, with no engine, no reference and the loss of temperature 1."""
    return {
        f"{ALGORITHM}.temperature": 1.0,
        f"{ALGORITHM}.use_kl_loss": False,
        f"{ALGORITHM}.use_entropy_loss": False,
        "trainer.fully_async.enabled": False,
        "trainer.placement.colocate_all": False,
        "trainer.placement.policy_num_nodes": spec.hardware.num_nodes,
        "trainer.placement.policy_num_gpus_per_node": spec.hardware.accelerators_per_node,
    }


SFT = (
    Row("", _fixed),
    *COMMON,
    Row("sft.reference", carried_by="trainer.ref.model.path of the training"),
    Row("sft.epochs", carried_by="num_steps of SkyRL's SFTConfig: epochs x (episodes / batch_size, rounded up)"),
    Row("sft.num_updates", carried_by="num_steps of SkyRL's SFTConfig"),
    Row(
        "sft.batch_size",
        carried_by="batch_size of SkyRL's SFTConfig",
        refuse=lambda s: uneven_sft_batch(ranks(s), s),
    ),
    Row(
        "sft.micro_batch_size",
        lambda s: dict.fromkeys(
            ("trainer.micro_train_batch_size_per_gpu", "trainer.micro_forward_batch_size_per_gpu"),
            s.sft.micro_batch_size if s.sft.max_tokens_per_micro_batch is None else 1,
        ),
    ),
    Row(
        "sft.max_tokens_per_micro_batch",
        lambda s: {"trainer.max_tokens_per_microbatch": s.sft.max_tokens_per_micro_batch or -1},
    ),
    Row("sft.learning_rate", f"{OPTIMIZER}.lr"),
    Row("sft.lr_schedule", lambda s: {f"{OPTIMIZER}.scheduler": SCHEDULER[s.sft.lr_schedule]}, refuse=_no_schedule),
    Row("sft.warmup_updates", f"{OPTIMIZER}.num_warmup_steps", note=_warmup_note, refuse=_no_rate),
    Row("sft.checkpoint_every", "trainer.ckpt_interval"),
    Row("sft.held_out_fraction", carried_by="eval_pretokenized_dataset_paths of SkyRL's SFTConfig"),
)
