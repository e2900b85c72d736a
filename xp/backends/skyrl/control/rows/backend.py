"""Rows of the sections `backend`, `hardware` and others about machines."""

from __future__ import annotations

from xp.backends.skyrl.control.constraints import is_colocated, is_megatron, workers
from xp.backends.skyrl.control.keys import (
    ENGINE,
    MEGATRON,
    Keys,
    cpu_servers,
    fsdp,
    has_critic,
    has_stub,
    is_rehearsal,
    megatron,
    not_on_cpu,
    optimizers,
    roles,
    trained,
)
from xp.backends.skyrl.control.packing import REMOVE_PADDING, can_pack, is_packed
from xp.planning.batch import batch_shape
from xp.planning.episode import episode_config
from xp.planning.rows import Row
from xp.planning.shared_rows import (
    QUANTIZED_BY_VLLM,
    depends_on_rows,
    indivisible_experts,
    weighs_rows,
)
from xp.spec import Attention, EngineName, RunSpec, SpeculativeMethod, Strategy

MAX_TOKENS = f"{ENGINE}.max_num_batched_tokens"
BATCHED_TOKENS = 8192
"""SkyRL's default of max_num_batched_tokens."""


def _attention(spec: RunSpec) -> str | None:
    shape = spec.model.architecture
    # Sinks: skyrl 0.4.0, workers/model_wrapper.py `attn_implementation`; transformers 5.8, modeling_gpt_oss.py.
    if shape is not None and shape.model_type == "gpt_oss" and not is_megatron(spec):
        return (
            "SkyRL loads a model under FSDP2 with FlashAttention 2 or PyTorch's kernel, and transformers has neither"
            f" for the attention of model={spec.model.name}; use backend=trl"
        )
    if spec.backend.attention is Attention.FLASH:
        if is_rehearsal(spec):
            return "FlashAttention needs a GPU; set sdpa on hardware=cpu"
        return None
    if is_megatron(spec):
        return "SkyRL's Megatron has flash or TransformerEngine's own; set flash"
    return None


def _attention_keys(spec: RunSpec) -> Keys:
    """Keys of the kernel, and of the episodes of a micro-batch as one sequence without padding."""
    return {
        "trainer.flash_attn": spec.backend.attention is Attention.FLASH,
        REMOVE_PADDING: can_pack(spec),
    }


def _attention_note(spec: RunSpec) -> str:
    if spec.backend.attention is not Attention.FLASH or can_pack(spec):
        return ""
    return "Episodes of a micro-batch are padded to the longest of it, since this network cannot read them packed."


def _no_context(spec: RunSpec) -> str | None:
    """Returns why a sequence cannot be split over ranks; None if it can, or need not.

    Source: skyrl 0.4.0, workers/model_wrapper.py `forward` and train/utils/utils.py `validate_megatron_cfg`.
    """
    if spec.backend.parallel.context == 1:
        return None
    if is_rehearsal(spec):
        return not_on_cpu("set 1")
    if is_packed(spec):
        return None
    if can_pack(spec):
        return f"SkyRL splits sequences without padding alone; leave {REMOVE_PADDING} out, or set 1"
    if spec.backend.attention is not Attention.FLASH:
        return (
            "SkyRL splits sequences without padding alone, and removes it for FlashAttention; set 1"
        )
    return f"SkyRL splits sequences without padding alone, and model={spec.model.name} is trained with it; set 1"


def _strategy(spec: RunSpec) -> str | None:
    if spec.backend.parallel.strategy is Strategy.DDP:
        return "SkyRL has no ddp; set fsdp2, which has the same mathematics"
    if is_rehearsal(spec) and is_megatron(spec):
        return not_on_cpu("set fsdp2")
    return None


def _context(spec: RunSpec) -> Keys:
    """Keys of Megatron's context parallelism, or of Ulysses under FSDP2."""
    if is_megatron(spec):
        ulysses = 1
    else:
        ulysses = spec.backend.parallel.context
    keys: Keys = {f"trainer.{role}.sequence_parallel_size": ulysses for role in roles(spec)}
    return keys | megatron(spec, "context_parallel_size", spec.backend.parallel.context)


def _stage_layers(end: str) -> Row:
    """Row of the layers of a pipeline's first or last stage."""
    key = f"transformer_config_kwargs.num_layers_in_{end}_pipeline_stage"

    def keys(spec: RunSpec) -> Keys:
        number = getattr(spec.backend.parallel, f"{end}_stage_layers")
        if number is None:
            return {}
        return megatron(spec, key, number)

    return Row(f"backend.parallel.{end}_stage_layers", keys)


CPU_OPTIMIZER = (
    "optimizer_cpu_offload",
    "use_precision_aware_optimizer",
    "overlap_cpu_optimizer_d2h_h2d",
)
OPTIMIZER_KWARGS = f"{MEGATRON[0]}.optimizer_config_kwargs"


def _cpu_optimizer(spec: RunSpec) -> Keys:
    """Keys of Megatron's Adam on the host; SkyRL's default fraction of 0 would leave it on the accelerator."""
    is_on = spec.backend.parallel.cpu_optimizer
    keys: Keys = {f"{OPTIMIZER_KWARGS}.{name}": is_on for name in CPU_OPTIMIZER}
    keys[f"{OPTIMIZER_KWARGS}.optimizer_offload_fraction"] = 1.0 if is_on else 0.0
    return keys if is_megatron(spec) else {}


def _sharded(spec: RunSpec) -> str:
    if is_megatron(spec):
        return ""
    return "nothing: FSDP2 shards over all accelerators"


def _split(name: str) -> Row:
    """Row of the number of ranks that a model is split over."""
    key = f"{name}_model_parallel_size"
    return Row(
        f"backend.parallel.{name}",
        lambda s: megatron(s, key, getattr(s.backend.parallel, name)),
        implemented_by=_sharded,
    )


NEVER_UNUSED = "SkyRL moves it only where engines are colocated; it stays on the accelerator."
BY_TURNS = "Policy and reference share accelerators: SkyRL moves each to the host while the other computes."


def _moved(spec: RunSpec) -> str:
    if not is_megatron(spec):
        return ""
    if is_colocated(spec):
        return "SkyRL's own moves between the phases of colocated engines"
    return "nothing: off"


def _has_reference(spec: RunSpec) -> bool:
    return spec.training.kl_coef > 0 or spec.algorithm.distill is not None


def _optimizer_note(spec: RunSpec) -> str:
    if is_colocated(spec):
        return ""
    if _has_reference(spec):
        return BY_TURNS
    if spec.backend.parallel.offload_optimizer:
        return NEVER_UNUSED
    return ""


def _reference_note(spec: RunSpec) -> str:
    is_moved = spec.backend.parallel.offload_reference
    if not _has_reference(spec):
        return ""
    if is_colocated(spec):
        if is_moved:
            return ""
        return "While colocated engines generate, SkyRL moves it there in any case."
    if is_moved and not is_megatron(spec):
        return ""
    return BY_TURNS


PARALLEL = (
    # SkyRL packs sequences without padding only for FlashAttention.
    Row("backend.attention", _attention_keys, note=_attention_note, refuse=_attention),
    Row(
        "backend.parallel.strategy",
        lambda s: {"trainer.strategy": "megatron" if is_megatron(s) else "fsdp"},
        refuse=_strategy,
    ),
    _split("tensor"),
    _split("pipeline"),
    _stage_layers("first"),
    _stage_layers("last"),
    Row(
        "backend.parallel.context",
        _context,
        refuse=_no_context,
    ),
    Row(
        "backend.parallel.expert",
        lambda s: (
            megatron(s, "expert_model_parallel_size", s.backend.parallel.expert)
            # Experts are not split: tensor parallelism is for the rest of the network.
            | megatron(s, "expert_tensor_parallel_size", 1)
        ),
        implemented_by=_sharded,
    ),
    Row(
        "backend.parallel.offload_parameters",
        lambda s: fsdp(s, trained(s), {"cpu_offload": s.backend.parallel.offload_parameters}),
        implemented_by=_moved,
        refuse_if=lambda s: is_megatron(s) and s.backend.parallel.offload_parameters,
        refuse="SkyRL moves Megatron's parameters only between phases, where engines are colocated; set it to false",
    ),
    Row(
        "backend.parallel.offload_optimizer",
        lambda s: optimizers(
            s, "offload_after_step", s.backend.parallel.offload_optimizer and is_colocated(s)
        ),
        note=_optimizer_note,
        refuse_if=lambda s: (
            is_megatron(s) and is_colocated(s) and not s.backend.parallel.offload_optimizer
        ),
        refuse="SkyRL always moves Megatron's optimizer state to the host while colocated engines generate; set true",
    ),
    Row(
        "backend.parallel.cpu_optimizer",
        _cpu_optimizer,
        implemented_by=lambda s: "" if is_megatron(s) else "nothing: off",
        refuse_if=lambda s: s.backend.parallel.cpu_optimizer and not is_megatron(s),
        refuse="FSDP2 moves parameters, gradients and Adam together; set it to false, and"
        " backend.parallel.offload_parameters=true",
    ),
    Row(
        "backend.parallel.offload_reference",
        lambda s: fsdp(s, ("ref",), {"cpu_offload": s.backend.parallel.offload_reference}),
        implemented_by=_moved,
        note=_reference_note,
    ),
)


def _placement(spec: RunSpec) -> str | None:
    if is_colocated(spec):
        return None
    if has_stub(spec) and not spec.training.max_staleness:
        return not_on_cpu("set colocated, or backend.engine.name=vllm")
    if not has_critic(spec):
        return None
    return "with separate engines SkyRL gives a critic its own accelerators, which xp does not support; set colocated"


def _unused(spec: RunSpec) -> str:
    if has_stub(spec):
        return "xp's replacement for vLLM does not use it."
    return ""


def _fp8(name: str) -> Row:
    """Row of a type of vLLM's, which quantises the weights of each update as those of a checkpoint (vLLM 0.30,
    model_loader/reload)."""
    key = f"{ENGINE}.engine_init_kwargs.{name}"
    return Row(
        f"backend.engine.{name}",
        lambda s: (
            {}
            if getattr(s.backend.engine, name) is None
            else {key: getattr(s.backend.engine, name).value}
        ),
    )


def _no_speculation(spec: RunSpec) -> str | None:
    """Returns why the engine cannot guess tokens. Source: skyrl 0.4.0, train/utils/utils.py
    `_validate_draft_weight_sync_cfg`."""
    speculative = spec.backend.engine.speculative
    if speculative is None:
        return None
    if speculative.method is not SpeculativeMethod.MTP:
        return "SkyRL guesses with the model's own heads only; set method=mtp and model=null, or use backend=trl"
    if not is_megatron(spec):
        return "SkyRL has the heads under Megatron only; set backend.parallel.strategy=megatron, or null"
    return None


OF_ENGINE = (
    Row(
        "backend.engine.name",
        cpu_servers,
        implemented_by="SkyRL's inference interface",
        note=lambda s: "xp's replacement for vLLM is used." if has_stub(s) else "",
        refuse_if=lambda s: s.backend.engine.name is not EngineName.VLLM and not has_stub(s),
        refuse="SkyRL supports only vLLM; set vllm, or on hardware=cpu transformers for xp's stub",
    ),
    Row(
        "backend.engine.placement",
        lambda s: {"trainer.placement.colocate_all": is_colocated(s)},
        refuse=_placement,
    ),
    Row("backend.engine.accelerators", lambda s: {f"{ENGINE}.num_engines": batch_shape(s).engines}),
    Row(
        "backend.engine.tensor_parallel",
        f"{ENGINE}.tensor_parallel_size",
        refuse_if=lambda s: is_rehearsal(s) and s.backend.engine.tensor_parallel > 1,
        refuse=not_on_cpu("set 1"),
    ),
    Row("backend.engine.memory_fraction", f"{ENGINE}.gpu_memory_utilization", note=_unused),
    Row("backend.engine.max_sequences", f"{ENGINE}.max_num_seqs", note=_unused),
    Row(
        "backend.engine.max_batched_tokens",
        lambda s: {MAX_TOKENS: value} if (value := s.backend.engine.max_batched_tokens) else {},
        note=_unused,
        refuse_if=lambda s: (
            s.backend.engine.max_batched_tokens is None
            and s.backend.engine.max_sequences > BATCHED_TOKENS
            and not has_stub(s)
        ),
        refuse=lambda s: (
            f"SkyRL's default is {BATCHED_TOKENS}; a decoding step takes one token of each of an engine's"
            f" {s.backend.engine.max_sequences} sequences; set {s.backend.engine.max_sequences} or more"
        ),
    ),
    Row(
        "backend.engine.eager",
        f"{ENGINE}.enforce_eager",
        note=_unused,
        refuse_if=lambda s: (
            s.model.lora is not None and not is_megatron(s) and s.backend.engine.eager
        ),
        refuse="SkyRL silently enables CUDA graphs for adapters; set it to false",
    ),
    Row("backend.engine.prefix_caching", f"{ENGINE}.enable_prefix_caching", note=_unused),
    _fp8("quantization"),
    QUANTIZED_BY_VLLM,
    _fp8("kv_cache_dtype"),
    # Source: skyrl 0.4.0, train/utils/utils.py `validate_inference_engine_cfg`.
    Row(
        "backend.engine.expert_parallel",
        f"{ENGINE}.expert_parallel_size",
        refuse=lambda s: indivisible_experts(
            s,
            (s.backend.engine.tensor_parallel,),
            "all accelerators of an engine (backend.engine.tensor_parallel)",
        ),
    ),
    Row(
        "backend.engine.speculative",
        lambda s: (
            {"trainer.mtp.enabled": False}
            if s.backend.engine.speculative is None
            else {
                "trainer.mtp.enabled": True,
                "trainer.mtp.num_speculative_tokens": s.backend.engine.speculative.num_tokens,
            }
        ),
        note_if=lambda s: s.backend.engine.speculative is not None,
        note="SkyRL trains the heads too, by a loss that reaches no other weights (trainer.mtp.loss_weight).",
        refuse=_no_speculation,
    ),
)


def _depends_on_rows(spec: RunSpec) -> str | None:
    algorithm = spec.algorithm
    needed = {
        "algorithm.use_kl_in_reward=false": not algorithm.use_kl_in_reward,
        "algorithm.dynamic_sampling=false": not algorithm.dynamic_sampling,
        "training.max_staleness=0": not spec.training.max_staleness,
        "model.router_replay=false": not spec.model.router_replay,
    }
    return depends_on_rows(spec, weighs_rows(spec) | needed)


PLACE = (
    Row(
        "hardware.accelerators_per_node",
        lambda s: {
            **{
                f"trainer.placement.{role}_num_gpus_per_node": workers(s).per_node
                for role in roles(s)
            },
            "trainer.use_expandable_segments": not is_rehearsal(s),
        },
    ),
    Row(
        "hardware.num_nodes",
        lambda s: {
            f"trainer.placement.{role}_num_nodes": workers(s).num_nodes for role in roles(s)
        },
        refuse_if=lambda s: is_rehearsal(s) and not has_stub(s) and s.hardware.num_nodes > 1,
        refuse=not_on_cpu("set 1, or engine.name=transformers"),
    ),
    Row(
        "env.max_turns",
        lambda s: {
            # SkyRL has one bound and overwrites the environment's with it; each Episode ends at its own.
            "generator.max_turns": max(member.max_turns for member in s.env.members.values()),
            # A thread per session for the environments' calls, most of which wait.
            "environment.skyrl_gym.max_env_workers": min(
                max(s.training.episodes_per_step, s.evaluation.batch_size),
                episode_config(s).max_sessions(),
            ),
        },
    ),
    Row(
        "env.options",
        lambda s: {"generator.step_wise_trajectories": s.env.has_rows},
        implemented_by=lambda s: "xp.backends.skyrl.worker.generator" if s.env.has_rows else "",
        refuse=_depends_on_rows,
    ),
    Row(
        "backend.convert_model", refuse="SkyRL loads the Hugging Face model itself; set it to false"
    ),
    Row("name", "trainer.run_name"),
    Row("project", "trainer.project_name"),
)
"""Fields outside the parity table's sections that have native keys or refusals."""

BACKEND = (*PARALLEL, *OF_ENGINE, *PLACE)
