"""RunSpec -> TRL: the one place where xp's words become GRPOConfig's.

Every knob that has meaning is written, whatever TRL's default; `catalog.json` holds the pinned version's fields.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from xp.backends.base import Places, Refusal
from xp.backends.trl.config import Common, EvaluateConfig, Sampling, TrainConfig
from xp.backends.trl.geometry import geometry, geometry_refusals
from xp.faults import nearest
from xp.job import Job, Stage
from xp.spec import AdvantageScale, KlEstimator, LossAggregation, RunSpec
from xp.stages.episode import episode_config, episode_secrets
from xp.stages.model import model_place, model_stage
from xp.stages.needs import QUIET, cpu_environment, trainer_resources, trainer_runtime
from xp.stages.prepare import prepare_config

PACKAGES = ("torch", "transformers", "trl", "openreward")
SCALE = {AdvantageScale.GROUP_STD: "group", AdvantageScale.BATCH_STD: "batch", AdvantageScale.NONE: "none"}
LOSS_TYPE = {
    LossAggregation.TOKEN_MEAN: "dapo",
    LossAggregation.SEQUENCE_MEAN: "grpo",
    LossAggregation.CONSTANT: "dr_grpo",
}

KNOBS: Mapping[str, Callable[[RunSpec], dict[str, Any]]] = {
    "seed": lambda s: {"seed": s.seed, "data_seed": s.seed},
    "model.dtype": lambda s: {"bf16": s.model.dtype == "bfloat16", "fp16": False},
    "algorithm.advantage_scale": lambda s: {"scale_rewards": SCALE[s.algorithm.advantage_scale]},
    "algorithm.clip_low": lambda s: {"epsilon": s.algorithm.clip_low},
    "algorithm.clip_high": lambda s: {"epsilon_high": s.algorithm.clip_high},
    "algorithm.loss_aggregation": lambda s: {"loss_type": LOSS_TYPE[s.algorithm.loss_aggregation]},
    # TRL has k3 alone, and weights it by the ratio unless told otherwise.
    "algorithm.kl_estimator": lambda _: {"use_bias_correction_kl": False},
    "training.num_steps": lambda s: {"max_steps": geometry(s).max_steps},
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
    "training.temperature": lambda s: {"temperature": s.training.temperature},
    "training.top_p": lambda s: {"top_p": s.training.top_p},
    "training.top_k": lambda s: {"top_k": s.training.top_k or 0},
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
    "hardware.accelerator": lambda s: {"use_cpu": s.hardware.accelerator == "cpu"},
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
    "importance_sampling_level": "token",
    # The order of tasks is xp's (xp.tasks.schedule), the same on every backend.
    "shuffle_dataset": False,
    "optim": "adamw_torch",
    "use_vllm": False,
    "remove_unused_columns": False,
    "dataloader_num_workers": 0,
    "disable_dropout": True,
}
"""GRPOConfig fields that xp sets the same for every spec."""


def refusals(spec: RunSpec) -> list[Refusal]:
    """What TRL cannot do, or what this rendering does not do yet."""
    found = [*geometry_refusals(spec), *_override_refusals(spec)]
    if spec.hardware.accelerator != "cpu":
        found.append(
            Refusal(
                "hardware",
                f"backend=trl runs on hardware=cpu so far, not on {spec.hardware.name};"
                " its rendering for accelerators (accelerate, FSDP2, vLLM) is not built yet",
            )
        )
    longest = spec.training.max_prompt_tokens + spec.training.max_response_tokens
    if longest > spec.model.max_context_tokens:
        found.append(
            Refusal(
                "training.max_response_tokens",
                f"max_prompt_tokens + max_response_tokens = {longest} is more than the {spec.model.max_context_tokens}"
                f" tokens that model={spec.model.name} can take; lower one of them",
            )
        )
    for field, is_set, way_out in (
        ("model.lora", spec.model.lora is not None, "set it to null"),
        ("algorithm.importance_correction", spec.algorithm.importance_correction != "none", "set it to none"),
        ("training.max_tokens_per_micro_batch", spec.training.max_tokens_per_micro_batch is not None, "set it to null"),
        ("training.entropy_coef", spec.training.entropy_coef > 0, "set it to 0"),
        ("evaluation.every", spec.evaluation.every is not None, "set it to null"),
        ("backend.engine.name", spec.backend.engine.name != "transformers", "set it to transformers"),
    ):
        if is_set:
            found.append(Refusal(field, f"not rendered for backend=trl yet; {way_out}"))
    if spec.algorithm.dynamic_sampling:
        found.append(
            Refusal("algorithm.dynamic_sampling", "TRL's GRPOTrainer does not resample groups; set it to false")
        )
    if spec.training.kl_coef > 0 and spec.algorithm.kl_estimator is not KlEstimator.K3:
        found.append(Refusal("algorithm.kl_estimator", "TRL has the k3 estimator only; set k3, or training.kl_coef=0"))
    return found


def grpo_config(spec: RunSpec, places: Places) -> dict[str, Any]:
    """The keyword arguments of trl.GRPOConfig, complete."""
    rendered: dict[str, Any] = dict(FIXED)
    for knob in KNOBS.values():
        rendered |= knob(spec)
    return rendered | {"output_dir": places.checkpoints} | spec.backend.overrides


def stages(spec: RunSpec, places: Places) -> tuple[Stage, ...]:
    """model (where it is built) -> train -> evaluate."""
    base_model = model_place(spec.model)
    built = () if spec.model.build is None else (model_stage(spec, places),)
    needs = ("prepare", *(stage.name for stage in built))
    train = Stage("train", _train_job(spec, places, base_model), needs=needs)
    before = {"before": base_model} if spec.evaluation.before_training else {}
    return (*built, train, evaluation(spec, places, {**before, "after": places.model}, needs=("train",)))


def evaluation(spec: RunSpec, places: Places, models: Mapping[str, str], needs: tuple[str, ...]) -> Stage:
    """Play the held-out tasks with each of these models."""
    here = places.stage("evaluate")
    curve = f"{here}/reward_curve.png"
    config = EvaluateConfig(
        common=_common(spec, places, "evaluate", spec.evaluation.temperature),
        models=models,
        curve=curve,
        num_episodes=spec.evaluation.num_episodes,
        batch_size=spec.evaluation.batch_size,
    )
    outputs = (f"{here}/evaluation.json", curve)
    return Stage("evaluate", _job(spec, here, "xp.backends.trl.evaluate", config.to_json(), outputs), needs=needs)


def checkpoint(spec: RunSpec, places: Places, step: int) -> str:
    """Directory of the checkpoint of a rollout step, as a Hugging Face model."""
    return f"{places.checkpoints}/checkpoint-{step * geometry(spec).updates_per_rollout}"


def _train_job(spec: RunSpec, places: Places, base_model: str) -> Job:
    training = spec.training
    config = TrainConfig(
        common=_common(spec, places, "train", training.temperature),
        base_model=base_model,
        model_dir=places.model,
        num_steps=training.num_steps,
        prompts_per_step=training.prompts_per_step,
        group_size=training.group_size,
        updates_per_rollout=geometry(spec).updates_per_rollout,
        shuffle=training.shuffle,
        mask_truncated=spec.algorithm.mask_truncated,
        grpo=grpo_config(spec, places),
    )
    outputs = (f"{places.model}/model.safetensors", places.metrics)
    return _job(spec, places.stage("train"), "xp.backends.trl.train", config.to_json(), outputs)


def _common(spec: RunSpec, places: Places, stage: str, temperature: float) -> Common:
    training = spec.training
    return Common(
        attempt=places.attempt,
        run=places.run,
        stage_dir=places.stage(stage),
        tasks=places.tasks,
        metrics=places.metrics,
        num_threads=spec.backend.num_threads,
        dtype=spec.model.dtype.value,
        chat_template=spec.model.chat_template,
        sampling=Sampling(
            temperature=temperature,
            top_p=training.top_p,
            top_k=training.top_k,
            max_prompt_tokens=training.max_prompt_tokens,
            max_tokens_per_turn=training.max_tokens_per_turn,
            max_response_tokens=training.max_response_tokens,
            seed=spec.seed,
        ),
        max_void_fraction=training.max_void_fraction,
        upload_as=places.run.removeprefix("runs/") if spec.upload_rollouts else None,
    )


def _job(spec: RunSpec, here: str, module: str, config: str, outputs: tuple[str, ...]) -> Job:
    return Job(
        argv=("python", "-m", module, f"{here}/config.json"),
        files={
            f"{here}/config.json": config,
            f"{here}/episode.json": episode_config(spec).to_json(),
            f"{here}/prepare.json": prepare_config(spec).to_json(),
        },
        outputs=outputs,
        resources=trainer_resources(spec),
        runtime=trainer_runtime(spec, PACKAGES),
        env={**cpu_environment(spec.backend.num_threads), **QUIET},
        secrets=episode_secrets(spec),
    )


def _schedule(spec: RunSpec) -> str:
    """HF's `constant` ignores warm-up; `constant_with_warmup` does not."""
    if spec.training.lr_schedule == "constant" and spec.training.warmup_updates:
        return "constant_with_warmup"
    return spec.training.lr_schedule.value


def _override_refusals(spec: RunSpec) -> list[Refusal]:
    owners = {key: field for field, knob in KNOBS.items() for key in knob(spec)} | dict.fromkeys(FIXED, "")
    owners["output_dir"] = "outputs"
    found = []
    for key in spec.backend.overrides:
        if key in owners:
            way_out = f"set {owners[key]}" if owners[key] else "it has the same value for every run"
            found.append(Refusal(f"backend.overrides.{key}", f"xp renders this key itself; {way_out}"))
        elif key not in catalog():
            found.append(Refusal(f"backend.overrides.{key}", f"GRPOConfig has no such field{nearest(key, catalog())}"))
    return found


@cache
def catalog() -> Mapping[str, Any]:
    """Field -> type and default of the pinned GRPOConfig (made by xp.backends.trl.make_catalog)."""
    fields: Mapping[str, Any] = json.loads(Path(__file__).with_name("catalog.json").read_text())["fields"]
    return fields
