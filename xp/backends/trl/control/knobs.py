"""Which fields of GRPOConfig each field of the spec becomes, and which xp sets the same for every run.

Every knob that has meaning is written, whatever TRL's default; `catalog.json` holds the pinned version's fields.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from xp.backends.trl.control.geometry import geometry
from xp.spec import (
    AdvantageScale,
    DType,
    EngineName,
    ImportanceCorrection,
    LossAggregation,
    Placement,
    PolicyLoss,
    RunSpec,
)

SCALE = {AdvantageScale.GROUP_STD: "group", AdvantageScale.BATCH_STD: "batch", AdvantageScale.NONE: "none"}
LOSS_TYPE = {
    LossAggregation.TOKEN_MEAN: "dapo",
    LossAggregation.SEQUENCE_MEAN: "grpo",
    LossAggregation.CONSTANT: "dr_grpo",
}
CORRECTION = {ImportanceCorrection.TOKEN: "token_truncate", ImportanceCorrection.SEQUENCE: "sequence_truncate"}
VLLM_MODE = {Placement.COLOCATED: "colocate", Placement.SEPARATE: "server"}
COLLECTIVE_S = 1800
"""What a rank waits for the others beside their episodes: TRL's own default of `ddp_timeout`."""

Knob = Callable[[RunSpec], dict[str, Any]]
KNOBS: Mapping[str, Knob] = {
    "seed": lambda s: {"seed": s.seed, "data_seed": s.seed},
    "model.dtype": lambda s: {"bf16": s.model.dtype is DType.BFLOAT16, "fp16": False},
    "algorithm.advantage_scale": lambda s: {"scale_rewards": SCALE[s.algorithm.advantage_scale]},
    "algorithm.policy_loss": lambda s: {"loss_type": "cispo"} if is_cispo(s) else {},
    "algorithm.ratio_level": lambda s: {"importance_sampling_level": s.algorithm.ratio_level.value},
    "algorithm.clip_low": lambda s: {"epsilon": s.algorithm.clip_low},
    # Of cispo the largest weight itself, of the others its distance from 1.
    "algorithm.clip_high": lambda s: {"epsilon_high": s.algorithm.clip_high + (1 if is_cispo(s) else 0)},
    "algorithm.loss_aggregation": lambda s: (
        {} if is_cispo(s) else {"loss_type": LOSS_TYPE[s.algorithm.loss_aggregation]}
    ),
    # TRL has k3 alone, and weights it by the ratio unless told otherwise.
    "algorithm.kl_estimator": lambda _: {"use_bias_correction_kl": False},
    "algorithm.importance_correction": lambda s: _importance_mode(s),
    "algorithm.importance_cap": lambda s: _importance_cap(s),
    "training.num_steps": lambda s: _max_steps(s),
    # With epochs, the stage's program puts it there, once it knows the number of tasks.
    "training.epochs": lambda s: {} if s.training.epochs is None else {"max_steps": None},
    "training.prompts_per_step": lambda s: {"generation_batch_size": geometry(s).generation_batch_size},
    "training.group_size": lambda s: {"num_generations": s.training.group_size},
    "training.updates_per_step": lambda s: {"gradient_accumulation_steps": geometry(s).gradient_accumulation_steps},
    "training.passes_per_step": lambda s: {"num_iterations": s.training.passes_per_step},
    "training.micro_batch_size": lambda s: {"per_device_train_batch_size": s.training.micro_batch_size},
    "training.learning_rate": lambda s: {"learning_rate": s.training.learning_rate},
    "training.lr_schedule": lambda s: {"lr_scheduler_type": _schedule(s)},
    "training.warmup_updates": lambda s: {"warmup_steps": s.training.warmup_updates},
    "training.weight_decay": lambda s: {"weight_decay": s.training.weight_decay},
    "training.adam_beta1": lambda s: {"adam_beta1": s.training.adam_beta1},
    "training.adam_beta2": lambda s: {"adam_beta2": s.training.adam_beta2},
    "training.adam_eps": lambda s: {"adam_epsilon": s.training.adam_eps},
    "training.max_grad_norm": lambda s: {"max_grad_norm": s.training.max_grad_norm},
    "training.kl_coef": lambda s: {"beta": s.training.kl_coef},
    "training.entropy_coef": lambda s: {"entropy_coef": s.training.entropy_coef},
    "training.temperature": lambda s: {"temperature": s.training.temperature},
    "training.top_p": lambda s: {"top_p": s.training.top_p},
    "training.top_k": lambda s: {"top_k": s.training.top_k or 0},
    "training.max_prompt_tokens": lambda s: (
        {"vllm_max_model_length": longest_sequence(s)} if s.backend.engine.name is EngineName.VLLM else {}
    ),
    "training.max_response_tokens": lambda s: {"max_completion_length": s.training.max_response_tokens},
    "training.checkpoint_every": lambda s: {
        "save_strategy": "steps",
        "save_steps": s.training.checkpoint_every * geometry(s).updates_per_rollout,
    },
    "training.keep_checkpoints": lambda s: {"save_total_limit": s.training.keep_checkpoints},
    "training.gradient_checkpointing": lambda s: {
        "gradient_checkpointing": s.training.gradient_checkpointing,
        "activation_checkpointing": s.training.gradient_checkpointing,
    },
    "backend.engine.name": lambda s: {"use_vllm": s.backend.engine.name is EngineName.VLLM},
    "backend.engine.placement": lambda s: _placement(s),
    "backend.engine.tensor_parallel": lambda s: (
        {"vllm_tensor_parallel_size": s.backend.engine.tensor_parallel} if is_colocated(s) else {}
    ),
    "backend.engine.memory_fraction": lambda s: (
        {"vllm_gpu_memory_utilization": s.backend.engine.memory_fraction} if is_colocated(s) else {}
    ),
    "hardware.accelerator": lambda s: (
        {"use_cpu": True, "optim": "adamw_torch"}
        if s.hardware.accelerator == "cpu"
        else {"use_cpu": False, "optim": "adamw_torch_fused"}
    ),
    "env.limits": lambda s: {"ddp_timeout": _patience_s(s)},
}
"""Spec field -> GRPOConfig fields."""

FIXED: Mapping[str, Any] = {
    # Metrics are xp's (metrics.jsonl), one line a rollout step; so is the progress bar.
    "report_to": "none",
    "logging_strategy": "steps",
    "logging_steps": 1,
    "logging_nan_inf_filter": False,
    "disable_tqdm": True,
    # Evaluation is a stage of its own.
    "eval_strategy": "no",
    # Truncation is the Episode's word, not a missing EOS; the rollout masks such episodes itself.
    "mask_truncated_completions": False,
    # The order of tasks is xp's (xp.tasks.schedule), the same on every backend.
    "shuffle_dataset": False,
    "remove_unused_columns": False,
    "dataloader_num_workers": 0,
    "disable_dropout": True,
    # Every parameter that is trained takes part in every forward.
    "ddp_find_unused_parameters": False,
}
"""GRPOConfig fields that xp sets the same for every spec."""


def is_cispo(spec: RunSpec) -> bool:
    """Whether the loss is the one that TRL averages over tokens whatever it is told."""
    return spec.algorithm.policy_loss is PolicyLoss.CISPO


def is_colocated(spec: RunSpec) -> bool:
    """Whether vLLM lives inside the training processes."""
    engine = spec.backend.engine
    return engine.name is EngineName.VLLM and engine.placement is Placement.COLOCATED


def longest_sequence(spec: RunSpec) -> int:
    """Tokens of the longest prompt and all its turns together."""
    return spec.training.max_prompt_tokens + spec.training.max_response_tokens


@cache
def catalog() -> Mapping[str, Any]:
    """Field -> type and default of the pinned GRPOConfig (made by xp.backends.trl.control.make_catalog)."""
    fields: Mapping[str, Any] = json.loads(Path(__file__).with_name("catalog.json").read_text())["fields"]
    return fields


def _max_steps(spec: RunSpec) -> dict[str, Any]:
    steps = spec.training.num_steps
    return {} if steps is None else {"max_steps": steps * geometry(spec).updates_per_rollout}


def _importance_mode(spec: RunSpec) -> dict[str, Any]:
    correction = spec.algorithm.importance_correction
    if correction is ImportanceCorrection.NONE:
        return {"vllm_importance_sampling_correction": False}
    return {"vllm_importance_sampling_correction": True, "vllm_importance_sampling_mode": CORRECTION[correction]}


def _importance_cap(spec: RunSpec) -> dict[str, Any]:
    if spec.algorithm.importance_correction is ImportanceCorrection.NONE:
        return {}
    return {
        "vllm_importance_sampling_clip_max": spec.algorithm.importance_cap,
        "vllm_importance_sampling_clip_min": None,
    }


def _placement(spec: RunSpec) -> dict[str, Any]:
    """Engines that take turns with training give their memory back while it runs; vLLM cannot on a CPU."""
    if spec.backend.engine.name is not EngineName.VLLM:
        return {}
    sleeps = is_colocated(spec) and spec.hardware.accelerator != "cpu"
    return {"vllm_mode": VLLM_MODE[spec.backend.engine.placement], "vllm_enable_sleep_mode": sleeps}


def _schedule(spec: RunSpec) -> str:
    """HF's `constant` ignores warm-up; `constant_with_warmup` does not."""
    if spec.training.lr_schedule == "constant" and spec.training.warmup_updates:
        return "constant_with_warmup"
    return spec.training.lr_schedule.value


def _patience_s(spec: RunSpec) -> int:
    """Seconds that a rank waits at a collective: another's episodes may take all of their time, in several waves.

    The stage's program adds what an evaluation while training takes, once it knows how many tasks are held out.
    """
    limits = [member.limits for member in spec.env.members.values()]
    at_once = min(one.max_sessions for one in limits)
    waves = math.ceil(geometry(spec).episodes_per_process / at_once)
    return COLLECTIVE_S + waves * math.ceil(max(one.episode_timeout_s for one in limits))
