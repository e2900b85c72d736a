"""Rows of `seed` and the section `model`."""

from __future__ import annotations

from xp.backends.skyrl.control.constraints import is_megatron
from xp.backends.skyrl.control.keys import ENGINE, MEGATRON, Keys, fsdp, has_critic, is_rehearsal, megatron, roles
from xp.backends.skyrl.worker.config import ENV_CLASS
from xp.envs.config import PromptSource
from xp.planning.episode import chat_of
from xp.planning.rows import Row
from xp.planning.stages import FETCHED
from xp.spec import DType, LoraSpec, RunSpec

LORA = "trainer.policy.model.lora"
ENGINE_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Ranks of adapters that vLLM takes (vllm/config/lora.py `MaxLoRARanks`); SkyRL asks for the adapter's own
(inference_servers/utils.py `build_vllm_cli_args`)."""


def _dtype(spec: RunSpec) -> Keys:
    is_bf16 = spec.model.dtype is DType.BFLOAT16
    precision = {"param_dtype": "bf16" if is_bf16 else "fp32", "reduce_dtype": "fp32", "buffer_dtype": "fp32"}
    return {
        "trainer.bf16": is_bf16,
        f"{ENGINE}.model_dtype": spec.model.dtype.value,
        **fsdp(spec, roles(spec), {f"mixed_precision.{key}": value for key, value in precision.items()}),
    }


def _only_bfloat16(spec: RunSpec) -> str | None:
    if is_rehearsal(spec) or spec.model.dtype is DType.BFLOAT16:
        return None
    return (
        f"SkyRL always computes in bfloat16 on accelerators, not in {spec.model.dtype.value};"
        " set bfloat16 (its FSDP keeps float32 master weights)"
    )


def _no_lora(spec: RunSpec) -> str | None:
    if spec.model.lora is None:
        return None
    if is_rehearsal(spec):
        return "SkyRL's adapters are not part of the rehearsal; set it to null on hardware=cpu"
    if has_critic(spec):
        return "SkyRL would train the critic's adapters on a random head that is never trained; set it to null"
    return None


def _no_rank(spec: RunSpec) -> str | None:
    """Returns why the engine takes no adapter of this rank; Megatron sends it merged weights."""
    lora = spec.model.lora
    if lora is None or is_megatron(spec) or lora.rank in ENGINE_RANKS:
        return None
    nearest = min(ENGINE_RANKS, key=lambda rank: abs(rank - lora.rank))
    legal = ", ".join(map(str, ENGINE_RANKS))
    return f"SkyRL gives the adapters to vLLM, which supports the ranks {legal}, not {lora.rank}; set {nearest}"


def _no_targets(spec: RunSpec) -> str | None:
    """Returns why no layer would get an adapter (megatron_worker.py `configure_lora`)."""
    lora = spec.model.lora
    if lora is None or lora.target_modules is None or not is_megatron(spec):
        return None
    return (
        "SkyRL's Megatron names its layers linear_qkv, linear_proj, linear_fc1 and linear_fc2, not as Hugging Face; set"
        " null, which is all of them, or backend.parallel.strategy=fsdp2"
    )


def _no_alpha(spec: RunSpec) -> str | None:
    lora = spec.model.lora
    if lora is None or lora.alpha == int(lora.alpha):
        return None
    return f"SkyRL needs a whole number, not {lora.alpha}; round it"


def _targets(lora: LoraSpec) -> object:
    return "all-linear" if lora.target_modules is None else list(lora.target_modules)


def _router_replay(spec: RunSpec) -> Keys:
    is_on, key = spec.model.router_replay, "moe_enable_routing_replay"
    # The reference chooses its own experts, as on Slime. With Ray's executor, the engine can hang (SkyRL's check).
    engine = {f"{ENGINE}.distributed_executor_backend": "mp"} if is_on else {}
    keys = {f"{MEGATRON[0]}.{key}": is_on, f"{MEGATRON[1]}.{key}": False} if is_megatron(spec) else {}
    return {f"{ENGINE}.enable_return_routed_experts": is_on, **keys, **engine}


def _no_router_replay(spec: RunSpec) -> str | None:
    """Returns why the engine's choice of experts cannot be replayed; None if it can, or need not."""
    if not spec.model.router_replay:
        return None
    if not is_megatron(spec):
        return "SkyRL replays the choice of experts under Megatron only; set backend.parallel.strategy=megatron"
    if spec.model.lora is not None:
        return "SkyRL's engine returns no experts with adapters; set model.lora=null"
    if spec.backend.engine.tensor_parallel > spec.hardware.accelerators_per_node:
        return "an engine must be on one machine then; lower backend.engine.tensor_parallel"
    if live := [name for name, member in spec.env.members.items() if member.prompt is PromptSource.LIVE]:
        return f"SkyRL needs a turn of the engine in each episode, which prompt=live of env.members.{live[0]} may lack"
    return None


MODEL = (
    Row(
        "seed",
        "trainer.seed",
        note="Each turn is drawn by a seed made of this one, the step, the task, the sample and the turn's number."
        " The order of tasks is the same on every backend.",
    ),
    Row(
        "model.path",
        carried_by="trainer.ref.model.path, and trainer.policy.model.path without an initial_checkpoint",
        native=("trainer.policy.model.path", "trainer.ref.model.path", "trainer.critic.model.path"),
    ),
    Row("model.revision", carried_by=FETCHED),
    Row("model.build", carried_by="xp.builtin.model, in the model stage"),
    Row(
        "model.dtype",
        _dtype,
        note=lambda s: (
            "" if is_rehearsal(s) else "Trained weights are stored in float32; the computation uses this type."
        ),
        refuse=_only_bfloat16,
    ),
    Row("model.max_context_tokens", carried_by="checked against the longest episode when planning"),
    Row(
        "model.chat_template",
        lambda s: {"generator.chat_template_kwargs": dict(chat_of(s).arguments)},
        carried_by="xp.episode.tokens; earlier turns stay as written",
    ),
    Row(
        "model.router_replay",
        _router_replay,
        carried_by=lambda s: "" if is_megatron(s) else "the model's own router",
        refuse=_no_router_replay,
        native=(f"{ENGINE}.enable_return_routed_experts", f"{ENGINE}.distributed_executor_backend"),
    ),
    Row("model.architecture", carried_by="the model's own config.json"),
    # Rank 0 disables LoRA.
    Row(
        "model.lora",
        lambda s: {f"{LORA}.rank": 0} if s.model.lora is None else {},
        refuse=_no_lora,
        native=(f"{LORA}.lora_sync_path",),
    ),
    Row(
        "model.lora.rank",
        lambda s: {} if (lora := s.model.lora) is None else {f"{LORA}.rank": lora.rank},
        refuse=_no_rank,
    ),
    Row(
        "model.lora.alpha",
        lambda s: {} if (lora := s.model.lora) is None else {f"{LORA}.alpha": int(lora.alpha)},
        refuse=_no_alpha,
    ),
    Row("model.lora.dropout", lambda s: {} if (lora := s.model.lora) is None else {f"{LORA}.dropout": lora.dropout}),
    Row(
        "model.lora.target_modules",
        lambda s: {} if (lora := s.model.lora) is None else {f"{LORA}.target_modules": _targets(lora)},
        refuse=_no_targets,
    ),
)


KEYS: Keys = {
    "environment.env_class": ENV_CLASS,
    # xp writes the metrics (metrics.jsonl): its tracker replaces SkyRL's.
    "trainer.logger": "console",
    "trainer.enable_ray_gpu_monitor": False,
    "generator.inference_engine.enable_ray_prometheus_stats": False,
    "trainer.num_logger_eval_samples": -1,
    "trainer.num_logger_train_samples": -1,
    # xp records the trajectories; SkyRL must not print or dump them again.
    "trainer.print_example_interval": -1,
    "trainer.dump_data_batch": False,
    "trainer.dump_eval_results": False,
    # The view repeats each held-out task for each of its samples.
    "generator.eval_n_samples_per_prompt": 1,
    "trainer.resume_mode": "latest",
    "data.dataloader.num_workers": 0,
    "trainer.algorithm.advantage_batch_normalize": False,
    "trainer.algorithm.zero_variance_filter": False,
    "trainer.update_ref_every_epoch": False,
    # Old log-probabilities come from the same micro-batches as the update's, so that the first ratio is exactly 1.
    "trainer.recompute_old_logprobs_per_minibatch": True,
    "trainer.placement.colocate_policy_ref": True,
    # The Episode determines truncation, not a missing end of turn; xp's generator masks such episodes itself.
    "generator.apply_overlong_filtering": False,
    "generator.zero_reward_on_non_stop": False,
    # A turn ends at the end-of-turn token; each turn is a separate message.
    "generator.batched": False,
    "generator.use_conversation_multi_turn": True,
    # The template's own end of turn is part of the environment's reply, as after a truncated turn.
    "generator.append_eos_token_after_stop_str_in_multi_turn": False,
    "generator.step_wise_trajectories": False,
    # A custom template keeps only the last step's reward.
    "generator.chat_template.name_or_path": None,
    **{
        f"generator.{sampling}.{key}": value
        for sampling in ("sampling_params", "eval_sampling_params")
        for key, value in {
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "logprobs": 1,
            "additional_kwargs": None,
        }.items()
    },
    # SkyRL's only engine, also in the rehearsal, where xp's stand-in implements its interface.
    "generator.inference_engine.backend": "vllm",
    "generator.inference_engine.run_engines_locally": True,
    # vLLM's default is without the temperature, but the trainer's log-probabilities are with it.
    "generator.inference_engine.engine_init_kwargs.logprobs_mode": "processed_logprobs",
    "generator.inference_engine.weight_sync_backend": "nccl",
    "generator.inference_engine.pipeline_parallel_size": 1,
    "generator.inference_engine.data_parallel_size": 1,
    "generator.inference_engine.expert_parallel_size": 1,
}


def _no_dropout(spec: RunSpec) -> Keys:
    """Keys for Megatron; under FSDP2, xp.backends.skyrl.worker.workers turns the model's own dropout off."""
    key = "transformer_config_kwargs"
    return megatron(spec, f"{key}.attention_dropout", 0.0) | megatron(spec, f"{key}.hidden_dropout", 0.0)


FIXED = Row("", lambda s: KEYS | _no_dropout(s))
