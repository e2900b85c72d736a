"""Fine-tunes the model on episodes with SkyRL's SFTTrainer: `python -m xp.backends.skyrl.worker.sft <config.json>`."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from xp.backends.skyrl.worker.config import SkyRLSftConfig
from xp.backends.skyrl.worker.train import check_warm_up, prepare
from xp.lib.reading import config_of
from xp.worker.program import run_stage
from xp.worker.sft import HELD_OUT_FILE, LEARNT_FILE, Updates, examples, write_examples
from xp.worker.tasks import policy_chat

HELD_OUT: Final = "held_out"
"""Name of the held-out episodes in SkyRL's metrics."""


def main(argv: Sequence[str]) -> None:
    """Runs the fine-tuning of a config file, from the last complete checkpoint if there is one."""
    path = Path(argv[0]).absolute()
    config, stage = config_of(path, SkyRLSftConfig.from_json), path.parent
    prepare(config.common)
    chat = policy_chat(config.common, config.model, stage)
    learnt, held_out = examples(config, stage, chat, config.common.sampling)
    write_examples(learnt, stage / LEARNT_FILE)
    write_examples(held_out, stage / HELD_OUT_FILE)

    from xp.backends.skyrl.worker.cluster import run_in_ray

    cfg = native_config(config, Path.cwd())
    num_updates = config.updates(len(learnt))
    check_warm_up(cfg, num_updates, "sft.warmup_updates")
    sft_cfg = sft_config(cfg, config, stage, num_updates, has_held_out=bool(held_out))
    num_workers = config.common.num_workers if config.common.rehearsal else None
    run_in_ray(cfg, train_in_task, (sft_cfg, config, Path.cwd()), num_workers=num_workers)


def native_config(config: SkyRLSftConfig, root: Path) -> Any:
    """SkyRL's configuration of the workers, made of the keys of a training; SkyRL checks only those of fine-tuning."""
    from skyrl.train.config import SkyRLTrainConfig

    from xp.backends.skyrl.worker.advantages import register_estimator

    register_estimator()
    return SkyRLTrainConfig.from_cli_overrides(config.common.native(config.model, root))


def sft_config(cfg: Any, config: SkyRLSftConfig, stage: Path, num_updates: int, *, has_held_out: bool) -> Any:
    """SkyRL's SFTConfig: its data are the episodes' tokens, and its settings those of `cfg`, a SkyRLTrainConfig."""
    from skyrl.train.config.sft_config import SFTConfig, SFTPlacementConfig, validate_sft_cfg

    trainer, policy, placement = cfg.trainer, cfg.trainer.policy, cfg.trainer.placement
    made = SFTConfig(
        strategy=trainer.strategy,
        model=policy.model,
        optimizer_config=policy.optimizer_config,
        placement=SFTPlacementConfig(placement.policy_num_nodes, placement.policy_num_gpus_per_node),
        megatron_config=policy.megatron_config,
        fsdp_config=policy.fsdp_config,
        sequence_parallel_size=policy.sequence_parallel_size,
        remove_microbatch_padding=trainer.remove_microbatch_padding,
        pretokenized_dataset_paths=[str(stage / LEARNT_FILE)],
        eval_pretokenized_dataset_paths=[str(stage / HELD_OUT_FILE)] if has_held_out else None,
        eval_dataset_names=[HELD_OUT] if has_held_out else None,
        eval_before_train=has_held_out,
        num_steps=num_updates,
        num_epochs=None,
        batch_size=config.batch_size,
        micro_train_batch_size_per_gpu=trainer.micro_train_batch_size_per_gpu,
        ckpt_path=trainer.ckpt_path,
        ckpt_interval=trainer.ckpt_interval,
        max_ckpts_to_keep=trainer.max_ckpts_to_keep,
        resume_from="latest",
        seed=trainer.seed,
        enable_ray_gpu_monitor=False,
    )
    validate_sft_cfg(made)
    return made


def train_in_task(cfg: Any, sft_cfg: Any, config: SkyRLSftConfig, root: Path) -> None:
    """Updates the model on the episodes and publishes it, as a Ray task.

    Args:
        cfg: SkyRLTrainConfig.
        sft_cfg: SkyRL's SFTConfig.
        config: xp's.
        root: the outputs root.
    """
    os.chdir(root)
    from xp.backends.skyrl.worker.checkpoints import choose_latest, hide_other_directories, publish_model
    from xp.backends.skyrl.worker.sft_trainer import XpSftTrainer
    from xp.episode.metrics_file import MetricsFile
    from xp.worker.demonstrations import PHASE

    hide_other_directories()
    choose_latest(Path(sft_cfg.ckpt_path))
    metrics = MetricsFile(Path(config.common.metrics), PHASE, config.common.attempt)
    trainer = XpSftTrainer(sft_cfg, cfg, SftLog(Updates(metrics), sft_cfg.num_steps))
    trainer.setup()
    trainer.train()
    trainer.shutdown()
    publish_model(
        lambda target: trainer.dispatch.save_hf_model("policy", str(target.absolute()), trainer.tokenizer),
        Path(config.target),
    )


class SftLog:
    """The tracker passed to SkyRL's trainer.

    Args:
        updates: takes the metrics.
        num_updates: number of updates of the whole fine-tuning.
    """

    def __init__(self, updates: Updates, num_updates: int) -> None:
        self._updates, self._num_updates = updates, num_updates
        self._held_out_loss: float | None = None
        self.learning_rate = math.nan
        """Rate of the update that was computed last."""

    def log(self, data: Mapping[str, Any], step: int, commit: bool = False) -> None:
        """Takes the metrics of an update, or of an evaluation, which SkyRL makes before the first and after the last
        update."""
        del commit
        loss = data.get(f"eval/{HELD_OUT}/loss")
        if "train/loss" in data:
            values = data["train/loss"], data["train/grad_norm"], self.learning_rate
            self._updates.end(step, *values, is_last=step == self._num_updates)
        elif loss is not None and self._updates.start_loss is None:
            if step:
                print(f"going on from update {step}", flush=True)
            self._updates.begin(step, loss)
        elif loss is not None:
            self._held_out_loss = loss

    def finish(self) -> None:
        """Writes the last update's metrics."""
        self._updates.finish(self._num_updates, self._held_out_loss)


if __name__ == "__main__":
    sys.exit(run_stage(main, sys.argv[1:]))
