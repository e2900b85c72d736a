"""Rows of `seed` and the section `model`."""

from __future__ import annotations

from xp.backends.skyrl.control.constraints import is_megatron
from xp.backends.skyrl.control.keys import (
    ENGINE,
    MEGATRON,
    Keys,
    fsdp,
    has_critic,
    is_rehearsal,
    roles,
)
from xp.backends.skyrl.control.packing import has_media, is_text_taken_out
from xp.backends.skyrl.worker.config import ENV_CLASS
from xp.planning.rows import Pin, Row
from xp.planning.shared_rows import SEED_OF_TURNS, network_fields
from xp.spec import DType, RunSpec
from xp.spec.env import PromptSource
from xp.worker.adapters import ENGINE_RANKS

LORA = "trainer.policy.model.lora"
FROZEN_EXPERTS = (
    "peft 0.18 in SkyRL adapts linear layers alone, so experts and router stay frozen; for them use backend=trl or"
    " strategy=megatron."
)
MERGED = (
    "Not tried: Megatron-Bridge's merge of adapters in bfloat16, for the engine and the published model, which may lose"
    " small updates."
)
OUTSIDE_TEXT = r"(?!.*\b(language_model|text_model)\b).*"
"""Pattern for peft of the modules outside the text network of a checkpoint with media, by transformers' names."""
READ_PADDING = (
    "deepseek_v32",
    "deepseek_v4",
    "glm_moe_dsa",
    "llama4_text",
    "recurrent_gemma",
    "rwkv",
)
"""Families for which transformers 5.16 computes other log-probabilities with padding on the left; the indexer of sparse
attention then also reads the tokens after its own."""


def _text_alone(spec: RunSpec) -> Keys:
    """Keys of a checkpoint with media: the engine leaves those parts out, and Megatron does where it can."""
    is_taken_out = is_text_taken_out(spec)
    return {
        "trainer.policy.language_model_only": is_taken_out,
        "trainer.ref.language_model_only": is_taken_out,
        f"{ENGINE}.language_model_only": has_media(spec),
    }


def _media_note(spec: RunSpec) -> str:
    if not has_media(spec) or is_text_taken_out(spec):
        return ""
    if is_megatron(spec):
        return "Megatron builds the whole network; xp has not tried this family with it."
    return "The whole network is loaded; its parts for pictures and sound are frozen."


def _dtype(spec: RunSpec) -> Keys:
    is_bf16 = spec.model.dtype is DType.BFLOAT16
    precision = {
        "param_dtype": "bf16" if is_bf16 else "fp32",
        "reduce_dtype": "fp32",
        "buffer_dtype": "fp32",
    }
    return {
        "trainer.bf16": is_bf16,
        f"{ENGINE}.model_dtype": spec.model.dtype.value,
        **fsdp(
            spec, roles(spec), {f"mixed_precision.{key}": value for key, value in precision.items()}
        ),
    }


def _no_lora(spec: RunSpec) -> str | None:
    if spec.model.lora is None:
        return None
    if is_rehearsal(spec):
        return "SkyRL's adapters are not part of the rehearsal; set it to null on hardware=cpu"
    if has_critic(spec):
        return "SkyRL would train the critic's adapters on a random head that is never trained; set it to null"
    return None


def _rounded(spec: RunSpec) -> str:
    has_start = spec.sft.data is not None or spec.training.initial_checkpoint is not None
    if spec.model.lora is None or not (has_start or is_megatron(spec)):
        return ""
    if is_megatron(spec):
        return MERGED
    return "The start's adapters are merged, in bfloat16."


def _no_rank(spec: RunSpec) -> str | None:
    """Returns why the engine takes no adapter of this rank, for which SkyRL asks (inference_servers/utils.py
    `build_vllm_cli_args`); Megatron sends it merged weights."""
    lora = spec.model.lora
    if lora is None or is_megatron(spec) or lora.rank in ENGINE_RANKS:
        return None
    nearest = min(ENGINE_RANKS, key=lambda rank: abs(rank - lora.rank))
    legal = ", ".join(map(str, ENGINE_RANKS))
    return f"SkyRL gives the adapters to vLLM, which supports the ranks {legal}, not {lora.rank}; set {nearest}"


def _target_modules(spec: RunSpec) -> Keys:
    if spec.model.lora is None:
        return {}
    modules = spec.model.lora.target_modules
    keys: Keys = {f"{LORA}.target_modules": "all-linear" if modules is None else list(modules)}
    if has_media(spec) and not is_megatron(spec):
        keys[f"{LORA}.exclude_modules"] = OUTSIDE_TEXT
    return keys


def _freezes_experts(spec: RunSpec) -> bool:
    return (
        spec.model.lora is not None
        and not is_megatron(spec)
        and bool(network_fields(spec).get("num_experts"))
    )


def _router_replay(spec: RunSpec) -> Keys:
    is_on = spec.model.router_replay
    key = "moe_enable_routing_replay"
    # The reference chooses its own experts, as on Slime. With Ray's executor, the engine can hang (SkyRL's check).
    if is_on:
        engine = {f"{ENGINE}.distributed_executor_backend": "mp"}
    else:
        engine = {}
    if is_megatron(spec):
        keys = {f"{MEGATRON[0]}.{key}": is_on, f"{MEGATRON[1]}.{key}": False}
    else:
        keys = {}
    return {f"{ENGINE}.enable_return_routed_experts": is_on, **keys, **engine}


def _no_router_replay(spec: RunSpec) -> str | None:
    """Returns why the engine's choice of experts cannot be replayed; None if it can, or need not."""
    if not spec.model.router_replay:
        return None
    if not is_megatron(spec):
        return "SkyRL replays the choice of experts under Megatron only; set backend.parallel.strategy=megatron"
    if spec.backend.engine.tensor_parallel > spec.trainer_accelerators:
        return "an engine must be on one machine then; lower backend.engine.tensor_parallel"
    live = [name for name, member in spec.env.members.items() if member.prompt is PromptSource.LIVE]
    if live:
        return (
            f"SkyRL needs a turn of the engine in each episode, which prompt=live of env.members.{live[0]} may lack;"
            " set false, or prompt=prepared there"
        )
    return None


MODEL = (
    Row("seed", "trainer.seed", note=SEED_OF_TURNS),
    Row(
        "model.path",
        _text_alone,
        implemented_by="trainer.ref.model.path, and trainer.policy.model.path without an initial_checkpoint",
        note=_media_note,
        refuse_if=lambda s: (
            not is_megatron(s) and network_fields(s).get("model_type") in READ_PADDING
        ),
        refuse="SkyRL pads episodes on the left, which changes this family's log-probabilities; use backend=trl",
    ),
    Row(
        "model.dtype",
        _dtype,
        note_if=lambda s: not is_rehearsal(s),
        note="Trained weights are stored in float32; the computation uses this type.",
        refuse_if=lambda s: not is_rehearsal(s) and s.model.dtype is not DType.BFLOAT16,
        refuse="SkyRL always computes in bfloat16 on accelerators; set bfloat16 (its FSDP keeps float32 master"
        " weights)",
    ),
    Row(
        "model.chat_template",
        lambda s: {"generator.chat_template_kwargs": s.model.template_arguments},
        implemented_by="xp.episode.tokens; earlier turns stay as written",
    ),
    Row(
        "model.router_replay",
        _router_replay,
        implemented_by=lambda s: "" if is_megatron(s) else "the model's own router",
        note_if=lambda s: s.model.router_replay and s.model.lora is not None,
        note="Not tried: the engine's choice of experts with adapters.",
        refuse=_no_router_replay,
    ),
    Row("model.architecture", implemented_by="the model's own config.json"),
    # Rank 0 disables LoRA.
    Row(
        "model.lora",
        lambda s: {f"{LORA}.rank": 0} if s.model.lora is None else {},
        note=_rounded,
        refuse=_no_lora,
    ),
    Row("model.lora.rank", f"{LORA}.rank", refuse=_no_rank),
    # SkyRL takes a whole number.
    Row(
        "model.lora.alpha",
        lambda s: {} if s.model.lora is None else {f"{LORA}.alpha": int(s.model.lora.alpha)},
        refuse_if=lambda s: (
            s.model.lora is not None and s.model.lora.alpha != int(s.model.lora.alpha)
        ),
        refuse="SkyRL needs a whole number; round it",
    ),
    Row("model.lora.dropout", f"{LORA}.dropout"),
    # Source of the names: megatron_worker.py `configure_lora`.
    Row(
        "model.lora.target_modules",
        _target_modules,
        note=lambda s: FROZEN_EXPERTS if _freezes_experts(s) else "",
        refuse_if=lambda s: (
            s.model.lora is not None and s.model.lora.target_modules is not None and is_megatron(s)
        ),
        refuse="SkyRL's Megatron names its layers linear_qkv, linear_proj, linear_fc1 and linear_fc2, not as Hugging"
        " Face; set null, which is all of them, or backend.parallel.strategy=fsdp2",
    ),
)


METRICS = "xp writes the metrics and the trajectories"
TRUNCATION = (
    "the Episode determines truncation; set algorithm.mask_truncated or env.reward.nonterminal"
)
TURNS = "a turn is one message, which ends at the model's own end of turn"
PINS = {
    "environment.env_class": Pin(ENV_CLASS, "the environments are xp's"),
    "trainer.logger": Pin("console", f"{METRICS}; set tracking"),
    **dict.fromkeys(
        (
            *(
                "trainer.enable_ray_gpu_monitor",
                "generator.inference_engine.enable_ray_prometheus_stats",
            ),
            *("trainer.dump_data_batch", "trainer.dump_eval_results"),
        ),
        Pin(False, METRICS),
    ),
    **dict.fromkeys(
        (
            *("trainer.num_logger_eval_samples", "trainer.num_logger_train_samples"),
            "trainer.print_example_interval",
        ),
        Pin(-1, METRICS),
    ),
    "generator.eval_n_samples_per_prompt": Pin(
        1, "evaluation.samples_per_task repeats the held-out tasks"
    ),
    "trainer.resume_mode": Pin("latest", "resume=RUN continues a run"),
    "data.dataloader.num_workers": Pin(0, "a view of tasks is read in the trainer's process"),
    "trainer.algorithm.advantage_batch_normalize": Pin(False, "set algorithm.advantage_scale"),
    "trainer.update_ref_every_epoch": Pin(
        False, "xp's view of the tasks is one epoch, so that it would never happen"
    ),
    "trainer.recompute_old_logprobs_per_minibatch": Pin(
        True,
        "old log-probabilities come from the micro-batches of the update, so that the first ratio is 1",
    ),
    "trainer.placement.colocate_policy_ref": Pin(
        True, "the planner places both on the same accelerators"
    ),
    "generator.apply_overlong_filtering": Pin(False, TRUNCATION),
    "generator.zero_reward_on_non_stop": Pin(False, TRUNCATION),
    "generator.batched": Pin(False, "xp plays episodes one by one"),
    "generator.use_conversation_multi_turn": Pin(True, TURNS),
    # The template's own end of turn is part of the environment's reply, as after a truncated turn.
    "generator.append_eos_token_after_stop_str_in_multi_turn": Pin(False, TURNS),
    # A custom template keeps only the last step's reward.
    "generator.chat_template.name_or_path": Pin(
        None, "xp renders the chat template; set model.chat_template"
    ),
    **{
        f"generator.{sampling}.{key}": pin
        for sampling in ("sampling_params", "eval_sampling_params")
        for key, pin in {
            "repetition_penalty": Pin(
                1.0, "SkyRL does not send it to the engine; set training.repetition_penalty"
            ),
            "logprobs": Pin(1, "xp compares the engine's log-probabilities with the trainer's"),
        }.items()
    },
    "generator.eval_sampling_params.min_p": Pin(
        0.0, "held-out episodes are of the model's own distribution"
    ),
    "generator.eval_sampling_params.additional_kwargs": Pin(
        None, "tokens are drawn in the same way on every trainer"
    ),
    # SkyRL's only engine, also in the rehearsal, where xp's stub implements its interface.
    "generator.inference_engine.backend": Pin("vllm", "it is SkyRL's only engine"),
    "generator.inference_engine.run_engines_locally": Pin(True, "the engines run in the job"),
    # vLLM's default is without the temperature.
    "generator.inference_engine.engine_init_kwargs.logprobs_mode": Pin(
        "processed_logprobs", "the trainer's log-probabilities are with the temperature"
    ),
    "generator.inference_engine.weight_sync_backend": Pin(
        "nccl", "xp's engine key and time limits are for this transfer"
    ),
    **dict.fromkeys(
        (f"generator.inference_engine.{kind}_parallel_size" for kind in ("pipeline", "data")),
        Pin(1, "the planner counts backend.engine.tensor_parallel accelerators for an engine"),
    ),
}


# Under FSDP2, xp.backends.skyrl.worker.workers turns the model's own dropout off.
DROPOUTS = {
    f"{place}.transformer_config_kwargs.{name}_dropout": 0.0
    for name in ("attention", "hidden")
    for place in MEGATRON
}
FIXED = Row(
    "",
    lambda s: {key: pin.value for key, pin in PINS.items()} | (DROPOUTS if is_megatron(s) else {}),
)
