"""Spec field -> SkyRL's keys: the one place where xp's words become those of SkyRLTrainConfig.

Every knob that has meaning is written, whatever SkyRL's default; the keys are those of the pinned 0.3.0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from xp.backends.skyrl.control.geometry import geometry, is_colocated, is_megatron
from xp.backends.skyrl.worker.config import OWN_ESTIMATOR, STEPS_KEY
from xp.backends.stages.episode import chat_of, episode_config
from xp.spec import (
    AdvantageScale,
    Attention,
    DType,
    Estimator,
    ImportanceCorrection,
    LossAggregation,
    LrSchedule,
    PolicyLoss,
    RatioLevel,
    RunSpec,
)

Keys = dict[str, Any]

LOSS_REDUCTION = {
    LossAggregation.TOKEN_MEAN: "token_mean",
    LossAggregation.SEQUENCE_MEAN: "sequence_mean",
    LossAggregation.CONSTANT: "seq_mean_token_sum_norm",
}
SCHEDULER = {
    # Without warm-up updates it is constant from the start.
    LrSchedule.CONSTANT: "constant_with_warmup",
    LrSchedule.LINEAR: "linear",
    LrSchedule.COSINE: "cosine",
}
OWN_ESTIMATORS = (Estimator.REINFORCE_PP, Estimator.GAE, Estimator.CUSTOM)
"""Whose advantages xp.backends.skyrl.worker.advantages computes, under a name of its own."""
MAX_SAMPLE_BATCHES = 30
"""Batches that a step of dynamic sampling may draw before SkyRL stops the run: its own default."""

ALGORITHM = "trainer.algorithm"
ENGINE = "generator.inference_engine"
MEGATRON = ("trainer.policy.megatron_config", "trainer.ref.megatron_config")


def is_rehearsal(spec: RunSpec) -> bool:
    """Whether SkyRL's loop runs on the CPU, with a stand-in for vLLM."""
    return spec.hardware.accelerator == "cpu"


def is_own(spec: RunSpec) -> bool:
    """Whether xp computes the advantages."""
    return spec.algorithm.estimator in OWN_ESTIMATORS


def has_critic(spec: RunSpec) -> bool:
    return spec.algorithm.critic is not None


def max_tokens(spec: RunSpec) -> int:
    """Prompt and response of an episode together."""
    return spec.training.max_prompt_tokens + spec.training.max_response_tokens


KNOBS: Mapping[str, Callable[[RunSpec], Keys]] = {
    "seed": lambda s: {"trainer.seed": s.seed},
    "model.dtype": lambda s: _dtype(s),
    "model.chat_template": lambda s: {"generator.chat_template_kwargs": dict(chat_of(s).arguments)},
    "model.lora": lambda s: _lora(s),
    "algorithm.estimator": lambda s: {
        f"{ALGORITHM}.advantage_estimator": OWN_ESTIMATOR if is_own(s) else s.algorithm.estimator.value
    },
    "algorithm.critic.discount": lambda s: _critic(s, f"{ALGORITHM}.gamma", "discount"),
    "algorithm.critic.gae_lambda": lambda s: _critic(s, f"{ALGORITHM}.lambd", "gae_lambda"),
    "algorithm.critic.value_clip": lambda s: _critic(s, f"{ALGORITHM}.value_clip", "value_clip"),
    "algorithm.advantage_scale": lambda s: {
        f"{ALGORITHM}.grpo_norm_by_std": s.algorithm.advantage_scale is AdvantageScale.GROUP_STD
    },
    "algorithm.policy_loss": lambda s: {f"{ALGORITHM}.policy_loss_type": _policy_loss(s)},
    "algorithm.clip_low": lambda s: {f"{ALGORITHM}.{_clip(s)}_low": s.algorithm.clip_low},
    "algorithm.clip_high": lambda s: {f"{ALGORITHM}.{_clip(s)}_high": s.algorithm.clip_high},
    "algorithm.loss_aggregation": lambda s: _loss_aggregation(s),
    "algorithm.kl_estimator": lambda s: {f"{ALGORITHM}.kl_estimator_type": s.algorithm.kl_estimator.value},
    "algorithm.importance_correction": lambda s: {
        f"{ALGORITHM}.off_policy_correction.tis_ratio_type": None
        if s.algorithm.importance_correction is ImportanceCorrection.NONE
        else s.algorithm.importance_correction.value
    },
    "algorithm.importance_cap": lambda s: {
        f"{ALGORITHM}.off_policy_correction.token_tis_ratio_clip_high": s.algorithm.importance_cap,
        f"{ALGORITHM}.off_policy_correction.sequence_tis_ratio_clip_high": s.algorithm.importance_cap,
    },
    "algorithm.dynamic_sampling": lambda s: {
        f"{ALGORITHM}.dynamic_sampling.type": "filter" if s.algorithm.dynamic_sampling else None,
        f"{ALGORITHM}.dynamic_sampling.max_sample_batches": MAX_SAMPLE_BATCHES,
        # The view of the tasks is one epoch, as long as the training; resampled batches need more of it.
        "trainer.epochs": MAX_SAMPLE_BATCHES if s.algorithm.dynamic_sampling else 1,
    },
    "training.num_steps": lambda s: {} if s.training.num_steps is None else {STEPS_KEY: s.training.num_steps},
    # With epochs, the stage's program puts it there, once it knows the number of tasks.
    "training.epochs": lambda s: {} if s.training.epochs is None else {STEPS_KEY: None},
    "training.prompts_per_step": lambda s: {"trainer.train_batch_size": s.training.prompts_per_step},
    "training.group_size": lambda s: {"generator.n_samples_per_prompt": s.training.group_size},
    "training.updates_per_step": lambda s: {
        f"trainer.{role}_mini_batch_size": geometry(s).mini_batch for role in _trained(s)
    },
    "training.passes_per_step": lambda s: {"trainer.update_epochs_per_batch": s.training.passes_per_step},
    "training.micro_batch_size": lambda s: _micro_batch(s),
    "training.max_tokens_per_micro_batch": lambda s: {
        "trainer.max_tokens_per_microbatch": s.training.max_tokens_per_micro_batch or -1
    },
    "training.learning_rate": lambda s: {"trainer.policy.optimizer_config.lr": s.training.learning_rate},
    "training.critic_learning_rate": lambda s: (
        {"trainer.critic.optimizer_config.lr": s.training.critic_learning_rate or s.training.learning_rate}
        if has_critic(s)
        else {}
    ),
    "training.lr_schedule": lambda s: _optimizers(s, "scheduler", SCHEDULER[s.training.lr_schedule]),
    "training.warmup_updates": lambda s: _optimizers(s, "num_warmup_steps", s.training.warmup_updates),
    "training.weight_decay": lambda s: _optimizers(s, "weight_decay", s.training.weight_decay),
    # SkyRL has one list for both betas.
    "training.adam_beta1": lambda s: _optimizers(s, "adam_betas", [s.training.adam_beta1, s.training.adam_beta2]),
    "training.adam_eps": lambda s: (
        {f"{MEGATRON[0]}.optimizer_config_kwargs.adam_eps": s.training.adam_eps} if is_megatron(s) else {}
    ),
    "training.max_grad_norm": lambda s: _optimizers(s, "max_grad_norm", s.training.max_grad_norm),
    "training.kl_coef": lambda s: {
        f"{ALGORITHM}.use_kl_loss": s.training.kl_coef > 0,
        f"{ALGORITHM}.kl_loss_coef": s.training.kl_coef,
    },
    "training.entropy_coef": lambda s: {
        f"{ALGORITHM}.use_entropy_loss": s.training.entropy_coef > 0,
        f"{ALGORITHM}.entropy_loss_coef": s.training.entropy_coef,
    },
    "training.temperature": lambda s: {
        "generator.sampling_params.temperature": s.training.temperature,
        f"{ALGORITHM}.temperature": s.training.temperature,
    },
    "training.top_p": lambda s: _sampled("top_p", s.training.top_p),
    "training.top_k": lambda s: _sampled("top_k", s.training.top_k or -1),
    "training.stop": lambda s: _sampled("stop", list(s.training.stop) or None),
    "training.max_tokens_per_turn": lambda s: _sampled("max_generate_length", s.training.max_tokens_per_turn),
    # xp leaves out long prompts itself, by the tokens that the model sees; SkyRL's own filter is wide open.
    "training.max_prompt_tokens": lambda s: {"trainer.max_prompt_length": max_tokens(s)},
    # SkyRL compares prompt and response together; within them, xp's generator keeps an episode to its response limit.
    "training.max_response_tokens": lambda s: {
        "generator.max_input_length": max_tokens(s),
        f"{ENGINE}.engine_init_kwargs.max_model_len": max_tokens(s),
    },
    "training.checkpoint_every": lambda s: {
        "trainer.ckpt_interval": s.training.checkpoint_every,
        "trainer.hf_save_interval": s.training.checkpoint_every,
    },
    "training.keep_checkpoints": lambda s: {"trainer.max_ckpts_to_keep": s.training.keep_checkpoints},
    "training.gradient_checkpointing": lambda s: {"trainer.gradient_checkpointing": s.training.gradient_checkpointing},
    "evaluation.temperature": lambda s: {"generator.eval_sampling_params.temperature": s.evaluation.temperature},
    "evaluation.every": lambda s: {"trainer.eval_interval": s.evaluation.every or -1},
    "evaluation.batch_size": lambda s: {"trainer.eval_batch_size": s.evaluation.batch_size},
    # SkyRL packs sequences without padding for FlashAttention alone.
    "backend.attention": lambda s: dict.fromkeys(
        ("trainer.flash_attn", "trainer.remove_microbatch_padding"), s.backend.attention is Attention.FLASH
    ),
    "backend.parallel.strategy": lambda s: {"trainer.strategy": "megatron" if is_megatron(s) else "fsdp"},
    "backend.parallel.tensor": lambda s: _megatron(s, "tensor_model_parallel_size", s.backend.parallel.tensor),
    "backend.parallel.pipeline": lambda s: _megatron(s, "pipeline_model_parallel_size", s.backend.parallel.pipeline),
    "backend.parallel.context": lambda s: _context(s),
    "backend.parallel.expert": lambda s: (
        _megatron(s, "expert_model_parallel_size", s.backend.parallel.expert)
        # An expert is not split: tensor parallelism is for the rest of the network.
        | _megatron(s, "expert_tensor_parallel_size", 1)
    ),
    "backend.parallel.offload_parameters": lambda s: _fsdp(
        s, _trained(s), {"cpu_offload": s.backend.parallel.offload_parameters}
    ),
    "backend.parallel.offload_reference": lambda s: _fsdp(
        s, ("ref",), {"cpu_offload": s.backend.parallel.offload_reference}
    ),
    "backend.parallel.offload_optimizer": lambda s: _optimizers(
        s, "offload_after_step", s.backend.parallel.offload_optimizer
    ),
    "backend.engine.placement": lambda s: {"trainer.placement.colocate_all": is_colocated(s)},
    "backend.engine.accelerators": lambda s: {f"{ENGINE}.num_engines": geometry(s).num_engines},
    "backend.engine.tensor_parallel": lambda s: {f"{ENGINE}.tensor_parallel_size": s.backend.engine.tensor_parallel},
    "backend.engine.memory_fraction": lambda s: {f"{ENGINE}.gpu_memory_utilization": s.backend.engine.memory_fraction},
    "backend.engine.max_sequences": lambda s: {f"{ENGINE}.max_num_seqs": s.backend.engine.max_sequences},
    "backend.engine.eager": lambda s: {f"{ENGINE}.enforce_eager": s.backend.engine.eager},
    "backend.engine.prefix_caching": lambda s: {f"{ENGINE}.enable_prefix_caching": s.backend.engine.prefix_caching},
    "hardware.accelerators_per_node": lambda s: {
        **{f"trainer.placement.{role}_num_gpus_per_node": geometry(s).workers_per_node for role in _roles(s)},
        "trainer.use_expandable_segments": not is_rehearsal(s),
    },
    "hardware.num_nodes": lambda s: {
        f"trainer.placement.{role}_num_nodes": geometry(s).num_nodes for role in _roles(s)
    },
    "env.max_turns": lambda s: {
        # SkyRL knows one bound and overwrites the environment's with it; each Episode ends at its own.
        "generator.max_turns": max(member.max_turns for member in s.env.members.values()),
        "environment.skyrl_gym.max_env_workers": _calls_at_once(s),
    },
    "name": lambda s: {"trainer.run_name": s.name},
    "project": lambda s: {"trainer.project_name": s.project},
}
"""Spec field -> SkyRL's keys and their values."""


def _dtype(spec: RunSpec) -> Keys:
    is_bf16 = spec.model.dtype is DType.BFLOAT16
    keys = {"trainer.bf16": is_bf16, f"{ENGINE}.model_dtype": spec.model.dtype.value}
    if is_megatron(spec):
        return keys
    precision = {"param_dtype": "bf16" if is_bf16 else "fp32", "reduce_dtype": "fp32", "buffer_dtype": "fp32"}
    return keys | _fsdp(spec, _roles(spec), {f"mixed_precision.{key}": value for key, value in precision.items()})


def _lora(spec: RunSpec) -> Keys:
    """Rank 0 is off."""
    place, lora = "trainer.policy.model.lora", spec.model.lora
    if lora is None:
        return {f"{place}.rank": 0}
    return {
        f"{place}.rank": lora.rank,
        f"{place}.alpha": int(lora.alpha),
        f"{place}.dropout": lora.dropout,
        f"{place}.target_modules": "all-linear" if lora.target_modules is None else list(lora.target_modules),
    }


def _loss_aggregation(spec: RunSpec) -> Keys:
    is_constant = spec.algorithm.loss_aggregation is LossAggregation.CONSTANT
    return {
        f"{ALGORITHM}.loss_reduction": LOSS_REDUCTION[spec.algorithm.loss_aggregation],
        f"{ALGORITHM}.max_seq_len": spec.training.max_response_tokens if is_constant else None,
    }


def _micro_batch(spec: RunSpec) -> Keys:
    """Both passes alike; 1 where episodes are packed by tokens, since SkyRL checks a number that it does not use."""
    size = spec.training.micro_batch_size if spec.training.max_tokens_per_micro_batch is None else 1
    return {"trainer.micro_train_batch_size_per_gpu": size, "trainer.micro_forward_batch_size_per_gpu": size}


def _trained(spec: RunSpec) -> tuple[str, ...]:
    """SkyRL's names of the networks that learn."""
    return ("policy", "critic") if has_critic(spec) else ("policy",)


def _roles(spec: RunSpec) -> tuple[str, ...]:
    return (*_trained(spec), "ref")


def _optimizers(spec: RunSpec, key: str, value: Any) -> Keys:
    return {f"trainer.{role}.optimizer_config.{key}": value for role in _trained(spec)}


def _critic(spec: RunSpec, key: str, field: str) -> Keys:
    return {} if spec.algorithm.critic is None else {key: getattr(spec.algorithm.critic, field)}


def _policy_loss(spec: RunSpec) -> str:
    if spec.algorithm.policy_loss is PolicyLoss.CISPO:
        return "cispo"
    return "gspo" if spec.algorithm.ratio_level is RatioLevel.SEQUENCE else "regular"


def _clip(spec: RunSpec) -> str:
    """Both losses write their bounds as 1 - low and 1 + high."""
    return "cispo.cispo_eps_clip" if spec.algorithm.policy_loss is PolicyLoss.CISPO else "eps_clip"


def _sampled(key: str, value: Any) -> Keys:
    """For rollouts and evaluation alike: one evaluation key that is given resets all the others."""
    return {f"generator.{sampling}.{key}": value for sampling in ("sampling_params", "eval_sampling_params")}


def _megatron(spec: RunSpec, key: str, value: Any) -> Keys:
    return {f"{place}.{key}": value for place in MEGATRON} if is_megatron(spec) else {}


def _context(spec: RunSpec) -> Keys:
    """Megatron's context parallelism; under FSDP2, Ulysses."""
    ulysses = 1 if is_megatron(spec) else spec.backend.parallel.context
    keys: Keys = {f"trainer.{role}.sequence_parallel_size": ulysses for role in _roles(spec)}
    return keys | _megatron(spec, "context_parallel_size", spec.backend.parallel.context)


def _fsdp(spec: RunSpec, roles: tuple[str, ...], values: Keys) -> Keys:
    if is_megatron(spec):
        return {}
    return {f"trainer.{role}.fsdp_config.{key}": value for role in roles for key, value in values.items()}


def _calls_at_once(spec: RunSpec) -> int:
    """Threads for the environments' calls: as many as are worth having in flight, one an episode at most."""
    episodes = max(spec.training.prompts_per_step * spec.training.group_size, spec.evaluation.batch_size)
    return min(episodes, episode_config(spec).calls_at_once())
