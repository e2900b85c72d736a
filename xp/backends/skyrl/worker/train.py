"""Runs SkyRL's training on the mixture of environments: `python -m xp.backends.skyrl.worker.train <config.json>`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from xp.backends.skyrl.worker.adapters_probe import check_adapters
from xp.backends.skyrl.worker.cluster import joins
from xp.backends.skyrl.worker.config import (
    HELD_OUT_DATA,
    TRAIN_DATA,
    SkyRLStageConfig,
    SkyRLTrainStageConfig,
)
from xp.backends.skyrl.worker.process import prepare_process
from xp.episode.tokens import ChatTokens
from xp.errors import ExitCode, XpError
from xp.lib import loopback, loopback_binding, private_ray
from xp.lib.atomic import replacing
from xp.lib.reading import config_of
from xp.spec.backend import Placement
from xp.tasks.row import TaskRow
from xp.worker.engines.teacher import check_teacher, check_teachers_pictures
from xp.worker.places import teacher_place
from xp.worker.program import run_stage
from xp.worker.skyrl_names import ENV_CLASS, warm_up_too_long
from xp.worker.tasks import policy_chat
from xp.worker.training import TrainingProgram

MIDDLEWARE = "xp.worker.engines.key_check.EngineKeyCheck"


def main(argv: Sequence[str]) -> None:
    """Runs the training of a config file; SkyRL resumes from the last complete checkpoint, if there is one."""
    path = Path(argv[0]).absolute()
    prepare(config_of(path, SkyRLTrainStageConfig.from_json))
    program = TrainingProgram.begin(path, SkyRLTrainStageConfig.from_json)
    config = program.config
    chat = policy_chat(config, config.start_model, program.stage)
    write_views(program, chat)

    from xp.backends.skyrl.worker.cluster import run_in_ray
    from xp.backends.skyrl.worker.experiment import train_in_task

    reference = config.reference
    distill = config.spec.algorithm.distill
    if distill is not None:
        reference = teacher_place(distill)
        check_teacher(distill, chat.tokenizer, os.environ)
        if chat.pictures is not None:
            check_teachers_pictures(distill, chat.pictures)
    cfg = native_config(config, config.start_model, reference)
    check_warm_up(cfg, config.num_steps * config.updates_per_rollout)
    run_in_ray(
        cfg, train_in_task, (config, path.parent, Path.cwd()), num_workers=config.num_workers
    )
    program.check()


def check_warm_up(cfg: Any, updates: int, field: str = "training.warmup_updates") -> None:
    """Raises XpError(PLAN) for a warm-up as long as the training, before Megatron would on every accelerator."""
    if (
        cfg.trainer.strategy == "megatron"
        and 0 < updates <= cfg.trainer.policy.optimizer_config.num_warmup_steps
    ):
        raise XpError(f"{field}: {warm_up_too_long(updates)}", ExitCode.PLAN)


def prepare(common: SkyRLStageConfig) -> None:
    """Prepares the process; must be called before SkyRL is imported."""
    is_rehearsal = common.num_workers is not None
    if not joins(is_rehearsal=is_rehearsal):
        private_ray.close_to_others()
    prepare_process()
    if is_rehearsal:
        from xp.backends.skyrl.worker.rehearsal import cpu_torch

        os.environ[cpu_torch.REAL_ENGINE] = "" if common.stub else "vllm"
        cpu_torch.prepare_process()


def write_views(program: TrainingProgram[SkyRLTrainStageConfig], chat: ChatTokens) -> None:
    """Writes all prompts of the training in xp's order, one epoch for SkyRL, and those of an evaluation."""
    config = program.config
    check_adapters(config.start_model, config.spec)
    view = Path(config.paths[TRAIN_DATA])
    write_view(program.view(config.start_model, chat, view), view)
    if config.evaluation is not None:
        write_view(program.held_out_view(chat), Path(config.paths[HELD_OUT_DATA]))


def native_config(common: SkyRLStageConfig, model: str, reference: str | None = None) -> Any:
    """SkyRL's own configuration, parsed and checked by SkyRL; `reference` only for a training."""
    from skyrl.train.config import SkyRLTrainConfig
    from skyrl.train.utils import validate_cfg

    from xp.backends.skyrl.worker.advantages import register_estimator

    register_estimator()
    cfg = SkyRLTrainConfig.from_cli_overrides(common.native(model, Path.cwd(), reference))
    validate_cfg(cfg)
    # SkyRL has no keys for them; its workers get them with its own settings.
    for role in (cfg.trainer.policy, cfg.trainer.critic):
        role.optimizer_config.min_lr = common.spec.training.min_learning_rate
    policy = cfg.trainer.policy.model
    policy.train_vision = common.spec.model.train_vision
    # A colocated engine loses all weights while it sleeps (RemoteInferenceClient.sleep).
    is_colocated = common.spec.backend.engine.placement is Placement.COLOCATED
    policy.sends_vision = common.spec.model.images is not None and is_colocated
    if loopback_binding.ONE_MACHINE in os.environ:
        # The router of SkyRL's engines is not a Python program; xp.lib.loopback_binding binds the engines' own servers.
        engine = cfg.generator.inference_engine
        engine.router_init_kwargs |= {"host": loopback.HOST, "prometheus_host": loopback.HOST}
        if private_ray.engine_key() is not None:
            engine.engine_init_kwargs |= {"middleware": [MIDDLEWARE]}
    return cfg


def skyrl_row(row: TaskRow) -> dict[str, Any]:
    """One row of SkyRL's dataset."""
    return {
        "prompt": [
            {"role": message["role"], "content": message["content"]} for message in row.messages
        ],
        "env_class": ENV_CLASS,
        "data_source": row.env,
        "task_id": row.task_id,
        "env": row.env,
        "split": row.split,
        "index": row.index,
        "tools": row.tools,
        "messages": json.dumps(row.messages),
    }


def write_view(rows: Iterable[TaskRow], path: Path) -> None:
    """Writes the Parquet file atomically."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with replacing(path) as file:
        pq.write_table(pa.Table.from_pylist([skyrl_row(row) for row in rows]), file)


if __name__ == "__main__":
    sys.exit(run_stage(main, sys.argv[1:]))
