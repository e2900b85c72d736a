"""Runs TRL's GRPOTrainer on the mixture of environments: `python -m xp.backends.trl.worker.train <config.json>`.

Under torchrun every rank runs this program; the first rank writes the run's metrics and the trained model.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xp.backends.trl.worker import colocated
from xp.backends.trl.worker.config import TRLTrainConfig
from xp.backends.trl.worker.generation import (
    let_trl_send_key,
    send_over_gloo,
    send_text_alone,
)
from xp.backends.trl.worker.lora import merged_weights, set_dropout, start_policy
from xp.backends.trl.worker.policy import publish_policy
from xp.backends.trl.worker.process import (
    Ranks,
    bind_on_one_machine,
    join_group,
    leave_group,
    quiet_rank,
    quiet_trainer,
)
from xp.episode.advantages import advantage_rule
from xp.episode.tokens import ChatTokens
from xp.lib.load import import_large
from xp.lib.loopback import free_port
from xp.tasks.curriculum import curriculum_of
from xp.worker.best import EarlyStop
from xp.worker.engines.key_check import KEY
from xp.worker.engines.server import URL
from xp.worker.facts import record_facts
from xp.worker.media import frozen_media
from xp.worker.network import free_media_inputs
from xp.worker.program import run_stage
from xp.worker.step_log import Start
from xp.worker.tasks import held_out_tasks, order_of, policy_chat
from xp.worker.training import TrainingProgram, evaluation_config, open_stage
from xp.worker.vllm_on_cpu import keep_plain_weights, take_back_draws

if TYPE_CHECKING:
    from xp.backends.trl.worker.rollout import Rollouts
    from xp.backends.trl.worker.steps import TRLStepLog


def main(argv: Sequence[str]) -> None:
    """Runs the training of a config file, from the last complete checkpoint if there is one."""
    path = Path(argv[0])
    ranks = Ranks()
    start = Start()
    bind_on_one_machine()
    if not ranks.is_main:
        quiet_rank()
    program = TrainingProgram.begin(path, TRLTrainConfig.from_json)
    config = program.config

    import_large(
        "datasets", "xp.backends.trl.worker.async_rollouts", "xp.backends.trl.worker.guard"
    )
    from transformers import AutoTokenizer, set_seed

    quiet_trainer(config.threads_per_process)
    set_seed(config.spec.seed)
    tokenizer = AutoTokenizer.from_pretrained(config.start_model)
    chat = policy_chat(config, config.start_model, path.parent, tokenizer)
    tasks = program.tasks(chat)
    order = order_of(config, tasks)

    from xp.backends.trl.worker.async_rollouts import AsyncRollouts
    from xp.backends.trl.worker.held_out import HeldOutEvaluation
    from xp.backends.trl.worker.process import TrainingProcess
    from xp.backends.trl.worker.rollout import Rollouts, decide_together
    from xp.backends.trl.worker.steps import TRLStepLog

    curriculum = curriculum_of(config.spec, tasks, config.num_steps, decide_together(ranks))
    start.ended("imports and tasks")
    with open_stage(path.parent, config, os.environ, ranks.suffix) as (mix, recorder):
        metrics = config.metrics_file("train") if ranks.is_main else None
        log = TRLStepLog(config, metrics, start)
        process = TrainingProcess(config, chat, mix, log, recorder, ranks)
        held_out = None
        eval_config = evaluation_config(config)
        if eval_config is not None:
            judged = held_out_tasks(config, path.parent, chat)
            held_out = HeldOutEvaluation(
                process, eval_config, path.with_name("episode.json"), judged
            )
            config = config.with_patience(held_out.deadline_s)
        kind = AsyncRollouts if config.spec.training.max_staleness else Rollouts
        rollouts = kind(process, order, held_out, curriculum)
        record_facts(config, config.start_model, path.parent, chat)
        trainer = make_trainer(config, os.environ, chat, order, log, rollouts)
        start.ended("model and engine")
        _train(trainer, Path(config.grpo["output_dir"]), log, rollouts, ranks)
        log.finish()
        target = Path(config.places.model)
        publish_policy(trainer, chat, target, config.spec.model, ranks, config.start_model)
        rollouts.evaluate_trained(trainer)
    leave_group(ranks)
    if ranks.is_main:
        program.check()


def _train(
    trainer: Any, checkpoints: Path, log: TRLStepLog, rollouts: Rollouts, ranks: Ranks
) -> None:
    """Trains from the last complete checkpoint, if there is one, to the last step or an early stop."""
    from xp.backends.trl.worker.checkpoints import (
        EndInTime,
        latest_checkpoint,
        save_checkpoint,
        step_of,
    )

    checkpoint = latest_checkpoint(checkpoints)
    if checkpoint is not None:
        print(f"continuing from {checkpoint}", flush=True)
        log.continue_after(step_of(checkpoint) // log.updates_per_rollout)
        rollouts.resume(checkpoint)
    try:
        trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    except EarlyStop as stop:
        print(stop, flush=True)
        trainer.remove_callback(EndInTime)
        save_checkpoint(trainer, ranks)
    finally:
        rollouts.close()


def make_trainer(
    config: TRLTrainConfig,
    environ: Mapping[str, str],
    chat: ChatTokens,
    order: Sequence[Any],
    log: TRLStepLog,
    rollouts: Rollouts,
) -> Any:
    """The GRPOTrainer of this process."""
    import torch
    from datasets import Dataset
    from transformers import PrinterCallback, TrainerCallback
    from trl import GRPOConfig

    from xp.backends.trl.worker.checkpoints import EndInTime, Seal
    from xp.backends.trl.worker.guard import GuardedTrainer
    from xp.backends.trl.worker.rollout import trl_rows
    from xp.backends.trl.worker.teacher import Teacher
    from xp.worker.engines.teacher import check_teachers_pictures

    # First, since under FSDP2 only one rank reads the weights, by the process group.
    join_group(Ranks(), use_cpu=config.grpo["use_cpu"], timeout_s=config.grpo["ddp_timeout"])
    prepare_engine(config, environ)
    # The server of xp.backends.trl.worker.launch.
    server = {}
    if URL in environ:
        server = {"vllm_server_base_url": environ[URL], "vllm_group_port": free_port()}
    args = GRPOConfig(**config.grpo, **server)
    shard_on_cpu(args.distributed_state, environ)
    policy = config.spec.model
    model, adapters = start_policy(config.start_model, policy)
    if policy.lora is None:
        # GRPOTrainer loads the reference itself, from the path in the configuration.
        model.config._name_or_path = config.reference
    frozen = frozen_media(model)
    if policy.train_vision:
        # A row without pictures has no gradients of the vision part.
        args.ddp_find_unused_parameters = True
    distill = config.spec.algorithm.distill
    if distill is not None and chat.pictures is not None:
        check_teachers_pictures(distill, chat.pictures)
    of_dtype = getattr(torch, policy.dtype.value)
    # Rollouts write their part of a checkpoint before it is sealed; a stand-in of tests has none.
    writers = [rollouts] if isinstance(rollouts, TrainerCallback) else []
    trainer = GuardedTrainer(
        log,
        None if distill is None else Teacher(distill, environ, chat.tokenizer, of_dtype),
        advantage_rule(config.spec.algorithm),
        chat.pictures,
        model=model,
        args=args,
        processing_class=chat.tokenizer,
        train_dataset=Dataset.from_list(trl_rows(order)),
        rollout_func=rollouts,
        reward_funcs=settled_reward,
        callbacks=[
            log,
            *writers,
            Seal(Ranks(), chat.end_ids, chat.template),
            EndInTime(config, Ranks()),
        ],
        peft_config=adapters,
    )
    trainer.remove_callback(PrinterCallback)
    free_media_inputs(trainer.model)
    if policy.lora is not None:
        set_dropout(trainer.model, policy.lora.dropout)
        if args.use_vllm:
            trainer.vllm_generation._iter_named_params = partial(merged_weights, trainer.model)
    if args.use_vllm:
        send_text_alone(trainer.vllm_generation, frozen, sees=chat.pictures is not None)
    return trainer


def prepare_engine(config: TRLTrainConfig, environ: Mapping[str, str]) -> None:
    """Sets arguments of vLLM that TRL does not pass, before the trainer starts the engine."""
    if not config.grpo["use_vllm"]:
        return
    if URL in environ:
        let_trl_send_key(environ[KEY])
        if config.grpo["use_cpu"]:
            send_over_gloo()
        return
    colocated.choose_port(os.environ)
    model = config.spec.model
    colocated.set_vllm_arguments(model.dtype.value, model.images)
    if config.grpo["use_cpu"]:
        keep_plain_weights()
        take_back_draws()


def shard_on_cpu(state: Any, environ: Mapping[str, str]) -> None:
    """Makes FSDP2 shard on CPUs as on accelerators; accelerate 1.15 silently leaves the model whole there."""
    from accelerate.utils import DistributedType

    if (
        environ.get("ACCELERATE_USE_FSDP") == "true"
        and state.distributed_type is DistributedType.MULTI_CPU
    ):
        state.distributed_type = DistributedType.MULTI_GPU


def settled_reward(settled: list[float | None], **_: Any) -> list[float | None]:
    """The rewards from the rollout function; None (void) is excluded from the group's baseline."""
    return settled


if __name__ == "__main__":
    sys.exit(run_stage(main, sys.argv[1:]))
