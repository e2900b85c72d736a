"""Fine-tunes the model on episodes with SkyRL's SFTTrainer: `python -m xp.backends.skyrl.worker.sft <config.json>`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from xp.backends.skyrl.worker.adapters_probe import check_adapters
from xp.backends.skyrl.worker.config import SkyRLSftConfig
from xp.backends.skyrl.worker.train import check_warm_up, prepare
from xp.lib.models.files import local_directory
from xp.lib.reading import config_of
from xp.worker.facts import check_weights
from xp.worker.program import run_stage
from xp.worker.sft import HELD_OUT_FILE, TRAINING_FILE, SftProgram

OF_TRAINER: Final = (
    "strategy",
    "remove_microbatch_padding",
    "micro_train_batch_size_per_gpu",
    "ckpt_path",
    "ckpt_interval",
    "max_ckpts_to_keep",
    "seed",
)
OF_POLICY: Final = (
    "model",
    "optimizer_config",
    "megatron_config",
    "fsdp_config",
    "sequence_parallel_size",
    "use_torch_compile",
    "record_memory",
    "torch_profiler_config",
)
"""Names that SkyRL's SFTConfig has too of SkyRLTrainConfig's `trainer` and `trainer.policy`."""


def main(argv: Sequence[str]) -> None:
    """Runs the fine-tuning of a config file, from the last complete checkpoint if there is one."""
    path = Path(argv[0]).absolute()
    config = config_of(path, SkyRLSftConfig.from_json)
    stage = path.parent
    prepare(config)
    check_weights(local_directory(config.model, Path()))
    check_adapters(config.model, config.spec)
    program = SftProgram.begin(config, stage, config.model)
    program.write_files()

    from xp.backends.skyrl.worker.cluster import run_in_ray
    from xp.backends.skyrl.worker.sft_trainer import train_in_task

    cfg = native_config(config, Path.cwd())
    check_warm_up(cfg, program.num_updates, "sft.warmup_updates")
    sft_cfg = sft_config(cfg, program)
    run_in_ray(cfg, train_in_task, (sft_cfg, config, Path.cwd()), num_workers=config.num_workers)
    program.check()


def native_config(config: SkyRLSftConfig, root: Path) -> Any:
    """SkyRL's configuration of the workers, made of the keys of a training; SkyRL checks only those of fine-tuning."""
    from skyrl.train.config import SkyRLTrainConfig

    from xp.backends.skyrl.worker.advantages import register_estimator

    register_estimator()
    cfg = SkyRLTrainConfig.from_cli_overrides(config.native(config.model, root))
    cfg.trainer.policy.optimizer_config.min_lr = config.spec.sft.min_learning_rate
    cfg.trainer.policy.model.train_vision = config.spec.model.train_vision
    return cfg


def sft_config(cfg: Any, program: SftProgram[SkyRLSftConfig]) -> Any:
    """SkyRL's SFTConfig: its data are the episodes' tokens, and its settings those of `cfg`, a SkyRLTrainConfig."""
    from skyrl.train.config.sft_config import SFTConfig, validate_sft_cfg

    config = program.config
    held_out = program.stage / HELD_OUT_FILE
    placement = cfg.trainer.placement
    owners = ((cfg.trainer, OF_TRAINER), (cfg.trainer.policy, OF_POLICY))
    sft_cfg = SFTConfig(
        **{name: getattr(owner, name) for owner, names in owners for name in names},
        pretokenized_dataset_paths=[str(program.stage / TRAINING_FILE)],
        eval_pretokenized_dataset_paths=[str(held_out)] if program.held_out else None,
        eval_before_train=bool(program.held_out),
        num_steps=program.num_updates,
        num_epochs=None,
        batch_size=config.spec.sft.batch_size,
        resume_from="latest",
        **{"enable_ray_gpu_monitor": False, **config.arguments},
    )
    sft_cfg.placement.num_nodes = placement.policy_num_nodes
    sft_cfg.placement.num_gpus_per_node = placement.policy_num_gpus_per_node
    validate_sft_cfg(sft_cfg)
    return sft_cfg


if __name__ == "__main__":
    sys.exit(run_stage(main, sys.argv[1:]))
