"""Rows of the section `training`."""

from __future__ import annotations

from typing import Any

from xp.backends.trl.control.constraints import (
    episodes_per_process,
    is_colocated,
    is_sharded,
    world_size,
)
from xp.backends.trl.control.rows.algorithm import NO_CRITIC
from xp.planning.rows import Row
from xp.planning.shared_rows import OLDER, length_rows, longest_in_engine, not_ahead, whole_episodes
from xp.spec import EngineName, Reference, RunSpec
from xp.spec.training import Optimizer

NOT_TRIED_SHARDED = " Not tried: bitsandbytes with the sharded tensors of FSDP2."
NOT_TRIED_VLLM = "Not tried: vLLM's batch invariance. It forms batches by the times of requests, so that samples can differ."
AFTER_THE_CUT = "With vLLM, log-probabilities are those after it; with transformers, before it."


def _schedule(spec: RunSpec) -> str:
    """Name of the schedule; Hugging Face's `constant` ignores warm-up, unlike `constant_with_warmup`."""
    if spec.training.lr_schedule == "constant" and spec.training.warmup_updates:
        return "constant_with_warmup"
    return spec.training.lr_schedule.value


def _wrong_reference(spec: RunSpec) -> str | None:
    if spec.model.lora is None or spec.training.kl_coef == 0:
        return None
    start = "with model.lora TRL's reference is the start without the adapters, not model.path"
    if spec.sft.data is not None:
        is_wrong = spec.training.reference is Reference.INITIAL
        if is_wrong:
            return f"{start}; set training.reference=sft, or training.kl_coef=0"
        return None
    if spec.training.initial_checkpoint is None:
        return None
    return f"{start}; set training.kl_coef=0, or make the checkpoint the model (model.path), or use backend=skyrl"


def _synced(spec: RunSpec) -> dict[str, Any]:
    """The policy itself is the new reference: TRL's default is a mixture of both."""
    every = spec.training.reference_every
    if every is None:
        steps = {}
    else:
        steps = {"ref_model_sync_steps": every * spec.training.all_updates_per_step}
    return {"sync_ref_model": every is not None, "ref_model_mixup_alpha": 1.0, **steps}


def _no_synced(spec: RunSpec) -> str | None:
    if spec.training.reference_every is None or spec.model.lora is None:
        return None
    return "TRL's reference of adapters is the model without them; set null, or model.lora=null"


def _split_group(spec: RunSpec) -> str | None:
    """Returns why groups cannot be trained on: each process scores whole groups of its own episodes."""
    size = spec.training.group_size
    own = episodes_per_process(spec)
    if size == 1:
        return "TRL's GRPOTrainer needs groups of at least 2; set 2 or more, or use backend=skyrl or slime"
    needs = {
        "a group's reward": spec.env.scores_groups,
        "algorithm.zero_variance_filter": spec.algorithm.zero_variance_filter,
        "env.options.max_rows": spec.env.has_rows,
    }
    why = next((name for name, is_set in needs.items() if is_set), None)
    if own % size == 0 or why is None:
        return None
    return (
        f"a process has {own} episodes of a step, which are not whole groups of {size}, and {why} needs them all; make"
        " training.prompts_per_step divisible by the number of processes"
    )


def _accumulation(spec: RunSpec) -> dict[str, Any]:
    training = spec.training
    at_once = training.updates_per_step * training.micro_batch_size * world_size(spec)
    return {"gradient_accumulation_steps": training.episodes_per_step // at_once}


def _optimizer(spec: RunSpec) -> dict[str, Any]:
    optimizer = spec.training.optimizer
    if optimizer is not Optimizer.ADAMW:
        return {"optim": optimizer.value}
    return {"optim": "adamw_torch" if spec.hardware.accelerator == "cpu" else "adamw_torch_fused"}


def _optimizer_note(spec: RunSpec) -> str:
    if spec.training.optimizer is Optimizer.SGD:
        return "It has no moments: adam_beta1, adam_beta2 and adam_eps have no effect."
    # transformers 5.23, trainer_optimizer.py `_get_bitsandbytes_optimizer`.
    if spec.training.optimizer is Optimizer.ADAMW_8BIT:
        return (
            f"Moments of embeddings stay in 32 bits.{NOT_TRIED_SHARDED if is_sharded(spec) else ''}"
        )
    return ""


TRAINING = (
    *length_rows("max_steps", per_step=lambda s: s.training.all_updates_per_step),
    Row(
        "training.prompts_per_step",
        lambda s: {"generation_batch_size": s.training.episodes_per_step},
    ),
    Row(
        "training.generation_prompts",
        refuse="TRL's GRPOTrainer does not resample groups; set null, or use backend=skyrl or slime",
    ),
    Row("training.group_size", "num_generations", refuse=_split_group),
    Row("training.updates_per_step", _accumulation),
    Row("training.passes_per_step", "num_iterations"),
    Row(
        "training.max_staleness",
        implemented_by=lambda s: (
            "xp.backends.trl.worker.async_rollouts"
            if s.training.max_staleness
            else "rollouts by turns"
        ),
        refuse=lambda s: not_ahead(s, None, is_colocated=is_colocated(s)),
    ),
    whole_episodes("xp under TRL"),
    Row("training.micro_batch_size", "per_device_train_batch_size"),
    Row(
        "training.max_tokens_per_micro_batch",
        refuse="TRL's micro-batches count episodes; set it to null and use training.micro_batch_size",
    ),
    Row(
        "training.optimizer",
        _optimizer,
        note=_optimizer_note,
    ),
    Row("training.learning_rate", "learning_rate"),
    Row("training.critic_learning_rate", implemented_by=NO_CRITIC),
    Row("training.lr_schedule", lambda s: {"lr_scheduler_type": _schedule(s)}),
    Row("training.min_learning_rate", implemented_by="xp's schedule in TRL's trainer"),
    Row(
        "training.warmup_updates",
        "warmup_steps",
        implemented_by="xp's schedule in TRL's trainer, which begins at 1/N",
    ),
    Row("training.weight_decay", "weight_decay", note="Biases and norms are excluded."),
    Row("training.adam_beta1", "adam_beta1"),
    Row("training.adam_beta2", "adam_beta2"),
    Row("training.adam_eps", "adam_epsilon"),
    Row("training.max_grad_norm", "max_grad_norm"),
    Row("training.kl_coef", "beta"),
    Row("training.reference_every", _synced, refuse=_no_synced),
    Row("training.entropy_coef", "entropy_coef", implemented_by="xp.backends.trl.worker.means"),
    Row("training.temperature", "temperature"),
    Row("training.top_p", "top_p", note=AFTER_THE_CUT),
    Row("training.top_k", lambda s: {"top_k": s.training.top_k or 0}, note=AFTER_THE_CUT),
    Row("training.min_p", "min_p", note=lambda s: AFTER_THE_CUT if s.training.min_p > 0 else ""),
    Row(
        "training.repetition_penalty",
        "repetition_penalty",
        note=lambda s: AFTER_THE_CUT if s.training.repetition_penalty != 1 else "",
    ),
    Row(
        "training.initial_checkpoint",
        implemented_by="AutoModelForCausalLM.from_pretrained, the reference's place being model.path; null: model.path",
        refuse=_wrong_reference,
    ),
    Row(
        "training.max_prompt_tokens",
        lambda s: (
            {"vllm_max_model_length": longest_in_engine(s)}
            if s.backend.engine.name is EngineName.VLLM
            else {}
        ),
        implemented_by="xp.tasks.load, which leaves longer prompts out",
    ),
    Row("training.max_response_tokens", "max_completion_length"),
    Row(
        "training.checkpoint_every",
        lambda s: {
            "save_strategy": "steps",
            "save_steps": s.training.checkpoint_every * s.training.all_updates_per_step,
        },
    ),
    Row(
        "training.export_every",
        implemented_by="nothing: a checkpoint of TRL is a Hugging Face model",
    ),
    Row("training.keep_checkpoints", "save_total_limit"),
    Row(
        "training.gradient_checkpointing",
        lambda s: dict.fromkeys(
            ("gradient_checkpointing", "activation_checkpointing"),
            s.training.gradient_checkpointing,
        ),
    ),
    Row(
        "training.deterministic",
        "full_determinism",
        note=lambda s: (
            NOT_TRIED_VLLM
            if s.training.deterministic and s.backend.engine.name is not EngineName.TRANSFORMERS
            else ""
        ),
    ),
    Row(
        "training.max_logprob_gap",
        implemented_by="xp.backends.trl.worker.guard, over the episodes of the step's first update, before it is made",
        note=lambda s: OLDER if s.training.max_staleness else "",
    ),
)


EVALUATION = (
    Row(
        "evaluation.keep_best",
        implemented_by="xp.worker.best",
        note=lambda s: (
            "The model of the last step is not among them." if s.evaluation.keep_best else ""
        ),
    ),
)
