"""Rows of the sections `backend`, `hardware` and others about machines."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from xp.backends.trl.control.constraints import (
    episodes_per_process,
    is_colocated,
    is_sharded,
    node_size,
    world_size,
)
from xp.planning.memory.estimate import engine_stays_awake
from xp.planning.rows import Row
from xp.planning.shared_rows import (
    QUANTIZED_BY_VLLM,
    depends_on_rows,
    indivisible_experts,
    weighs_rows,
)
from xp.spec import Attention, EngineName, Placement, RunSpec, SpeculativeMethod, Strategy

VLLM_MODE = {Placement.COLOCATED: "colocate", Placement.SEPARATE: "server"}
COLLECTIVE_S = 1800
"""Seconds that a rank waits for others, in addition to their episodes: TRL's default of `ddp_timeout`."""
BATCHED_TOKENS = 4096
"""TRL's max_num_batched_tokens of a colocated engine (trl/generation/vllm_generation.py); a decoding step takes one
token of each sequence."""
NO_ARGUMENT = "TRL has no argument for this on a colocated engine"


def _strategy(spec: RunSpec) -> str:
    if world_size(spec) == 1:
        return "nothing: one process holds the whole model"
    return f"accelerate launch, distributed_type={'FSDP' if is_sharded(spec) else 'MULTI_GPU'}"


def _refused_strategy(spec: RunSpec) -> str | None:
    if spec.backend.parallel.strategy is Strategy.MEGATRON:
        return "TRL has no Megatron; set fsdp2 or ddp, or backend=skyrl or slime"
    if spec.model.lora is not None and is_sharded(spec):
        return (
            "xp merges adapters for the engine process by process, which needs whole weights; set ddp with"
            " model.lora"
        )
    return None


def _offload(name: str, note: str) -> Row:
    """Row of a part that FSDP2 offloads with the parameters."""
    return Row(
        f"backend.parallel.{name}",
        implemented_by="fsdp_offload_params",
        note=note,
        refuse_if=lambda s: (
            getattr(s.backend.parallel, name) and not s.backend.parallel.offload_parameters
        ),
        refuse="FSDP2 offloads all state or nothing; set backend.parallel.offload_parameters=true too, or this false",
    )


def _of_one_rank(name: str, neutral: str) -> Row:
    """Row of a part of parallelism that splits the model."""
    refuse = f"TRL's GRPOTrainer is data-parallel only; set {neutral}, or backend=skyrl or slime"
    return Row(f"backend.parallel.{name}", refuse=refuse)


PARALLEL = (
    Row(
        "backend.attention",
        implemented_by="transformers' own choice, which is sdpa",
        refuse_if=lambda s: s.backend.attention is Attention.FLASH,
        refuse="no wheel of FlashAttention is published for the torch of TRL's lock; set sdpa",
    ),
    Row("backend.parallel.strategy", implemented_by=_strategy, refuse=_refused_strategy),
    *(_of_one_rank(name, "1") for name in ("tensor", "pipeline", "context", "expert")),
    *(_of_one_rank(name, "null") for name in ("first_stage_layers", "last_stage_layers")),
    Row(
        "backend.parallel.offload_parameters",
        implemented_by="fsdp_offload_params",
        refuse_if=lambda s: s.backend.parallel.offload_parameters and not is_sharded(s),
        refuse="only strategy=fsdp2 on two or more training processes offloads; set false",
    ),
    _offload(
        "offload_optimizer", "FSDP2 offloads parameters, gradients and optimizer state together."
    ),
    Row(
        "backend.parallel.cpu_optimizer",
        refuse="TRL's FSDP2 moves parameters, gradients and Adam together; set it to false, and"
        " backend.parallel.offload_parameters=true",
    ),
    _offload("offload_reference", "FSDP2 offloads the reference together with the policy."),
)


def _served(flag: str, colocated: str = "") -> Callable[[RunSpec], str]:
    """Function that returns the native name of an engine's field: a flag of `vllm serve`, or colocated engines'
    argument."""

    def receives(spec: RunSpec) -> str:
        if spec.backend.engine.name is EngineName.TRANSFORMERS:
            return "nothing: the policy itself generates"
        if is_colocated(spec):
            return colocated
        return f"vllm serve {flag}"

    return receives


def _refused_name(spec: RunSpec) -> str | None:
    name = spec.backend.engine.name
    is_on_cpu = spec.hardware.accelerator == "cpu"
    if name is EngineName.SGLANG:
        if is_on_cpu:
            fix = "set transformers or vllm on hardware=cpu"
        else:
            fix = "set vllm"
        return f"TRL does not support sglang; {fix}"
    if name is EngineName.TRANSFORMERS and not is_on_cpu:
        return "transformers is xp's own decoding, which is for hardware=cpu; set vllm"
    return None


def _placement(spec: RunSpec) -> dict[str, Any]:
    """Keys of the engines' placement; a colocated engine frees its memory during training, except on a CPU and where
    both fit."""
    if spec.backend.engine.name is not EngineName.VLLM:
        return {}
    sleeps = (
        is_colocated(spec) and spec.hardware.accelerator != "cpu" and not engine_stays_awake(spec)
    )
    return {"vllm_mode": VLLM_MODE[spec.backend.engine.placement], "vllm_enable_sleep_mode": sleeps}


def _indivisible(spec: RunSpec) -> str | None:
    engine = spec.backend.engine
    if engine.accelerators is None:
        generating = world_size(spec)
    else:
        generating = engine.accelerators
    if engine.name is not EngineName.VLLM:
        return None
    if (
        spec.hardware.num_nodes > 1
        and is_colocated(spec)
        and node_size(spec) % engine.tensor_parallel
    ):
        return f"{engine.tensor_parallel} does not divide the {node_size(spec)} training processes of a node; set a divisor"
    if generating % engine.tensor_parallel == 0:
        return None
    return f"{engine.tensor_parallel} does not divide the {generating} accelerators that generate; set a divisor"


def _too_many(spec: RunSpec) -> str | None:
    engine = spec.backend.engine
    at_once = episodes_per_process(spec) * engine.tensor_parallel
    if not is_colocated(spec) or at_once <= min(engine.max_sequences, BATCHED_TOKENS):
        return None
    what = f"TRL's colocated engine takes all {at_once} episodes of its processes at once"
    if at_once > BATCHED_TOKENS:
        return (
            f"{what}, more than the {BATCHED_TOKENS} tokens that TRL lets it compute in one pass; set"
            " backend.engine.placement=separate (and backend.engine.accelerators), or fewer episodes per step"
        )
    return f"{what}; set {at_once} or more, or placement=separate"


def _batched_elsewhere(spec: RunSpec) -> str | None:
    engine = spec.backend.engine
    if engine.max_batched_tokens is None or engine.placement is Placement.SEPARATE:
        return None
    if engine.name is EngineName.VLLM:
        return (
            f"TRL sets {BATCHED_TOKENS} for its colocated engine; set null, or placement=separate"
        )
    return "the policy itself generates; set null"


def _of_server(
    name: str, flag: str, fixed: Any, refuse: Callable[[RunSpec], str | None] = lambda _: None
) -> Row:
    """Row of a flag of vLLM that only a server has; colocated engines have the value `fixed`."""

    def refused(spec: RunSpec) -> str | None:
        if is_colocated(spec) and getattr(spec.backend.engine, name) != fixed:
            legal = "null" if fixed is None else str(fixed).lower()
            return f"{NO_ARGUMENT}; set {legal}, or placement=separate (and backend.engine.accelerators)"
        return refuse(spec)

    def implemented(spec: RunSpec) -> str:
        is_off = fixed is not True and getattr(spec.backend.engine, name) == fixed
        if is_off:
            return "nothing: off"
        return _served(flag, colocated=f"nothing: {NO_ARGUMENT}")(spec)

    return Row(f"backend.engine.{name}", implemented_by=implemented, refuse=refused)


def _own_heads(spec: RunSpec) -> str | None:
    speculative = spec.backend.engine.speculative
    if speculative is None or speculative.method is SpeculativeMethod.DRAFT:
        return None
    return "TRL trains and saves the model without its heads; set method=draft with a smaller model, or use backend=skyrl"


ENGINE = (
    Row(
        "backend.engine.name",
        lambda s: {"use_vllm": s.backend.engine.name is EngineName.VLLM},
        refuse=_refused_name,
    ),
    Row(
        "backend.engine.placement",
        _placement,
        implemented_by=lambda s: (
            _served("")(s) if s.backend.engine.name is EngineName.TRANSFORMERS else ""
        ),
        refuse_if=lambda s: (
            s.backend.engine.name is EngineName.TRANSFORMERS
            and s.backend.engine.placement is Placement.SEPARATE
        ),
        refuse="the policy itself generates; set colocated, or engine.name=vllm",
    ),
    Row(
        "backend.engine.accelerators",
        implemented_by=_served(
            "on these, --data-parallel-size engines of them", colocated="none of their own"
        ),
        refuse_if=lambda s: (
            s.hardware.accelerator != "cpu"
            and (s.backend.engine.accelerators or 0) >= max(1, s.trainer_accelerators)
        ),
        refuse=lambda s: (
            f"{s.backend.engine.accelerators} of {s.trainer_accelerators} accelerators leave none to"
            " train on; lower it, or set placement=colocated and accelerators=null"
        ),
    ),
    Row(
        "backend.engine.tensor_parallel",
        lambda s: (
            {"vllm_tensor_parallel_size": s.backend.engine.tensor_parallel}
            if is_colocated(s)
            else {}
        ),
        implemented_by=_served("--tensor-parallel-size"),
        refuse=_indivisible,
    ),
    Row(
        "backend.engine.memory_fraction",
        lambda s: (
            {"vllm_gpu_memory_utilization": s.backend.engine.memory_fraction}
            if is_colocated(s)
            else {}
        ),
        implemented_by=_served("--gpu-memory-utilization"),
    ),
    Row(
        "backend.engine.max_sequences",
        implemented_by=_served("--max-num-seqs", colocated="max_num_seqs, set by TRL"),
        note_if=is_colocated,
        note="TRL gives its engine all episodes of its processes at once; refused if these are more.",
        refuse=_too_many,
    ),
    Row(
        "backend.engine.max_batched_tokens",
        implemented_by=_served(
            "--max-num-batched-tokens",
            colocated=f"max_num_batched_tokens={BATCHED_TOKENS}, set by TRL",
        ),
        refuse=_batched_elsewhere,
    ),
    _of_server("eager", "--enforce-eager", fixed=False),
    _of_server("prefix_caching", "--enable-prefix-caching", fixed=True),
    _of_server("quantization", "--quantization", fixed=None),
    QUANTIZED_BY_VLLM,
    _of_server("kv_cache_dtype", "--kv-cache-dtype", fixed=None),
    _of_server(
        "expert_parallel",
        "--enable-expert-parallel, over all accelerators of a server",
        fixed=1,
        refuse=lambda s: indivisible_experts(
            s,
            (s.backend.engine.accelerators or 1,),
            "all accelerators of the server (backend.engine.accelerators)",
        ),
    ),
    _of_server("speculative", "--speculative-config", fixed=None, refuse=_own_heads),
)


def _patience_s(spec: RunSpec) -> int:
    """Seconds that a rank waits at a collective; another rank's episodes may need all their time, in several waves.

    The stage's program adds the time of an evaluation during training when the number of held-out tasks is known.
    """
    limits = [member.limits for member in spec.env.members.values()]
    at_once = min(limit.max_sessions for limit in limits)
    waves = math.ceil(episodes_per_process(spec) / at_once)
    return COLLECTIVE_S + waves * math.ceil(max(limit.episode_timeout_s for limit in limits))


def _depends_on_rows(spec: RunSpec) -> str | None:
    more = {"training.updates_per_step=1": spec.training.updates_per_step == 1}
    return depends_on_rows(spec, weighs_rows(spec) | more)


PLACE = (
    Row("hardware.accelerator", lambda s: {"use_cpu": s.hardware.accelerator == "cpu"}),
    Row(
        "hardware.num_nodes",
        implemented_by="num_machines",
        refuse_if=lambda s: (
            s.hardware.num_nodes > 1 and s.backend.engine.placement is Placement.SEPARATE
        ),
        refuse="a vLLM server of TRL's is on one machine, and other machines cannot reach it; set"
        " placement=colocated and backend.engine.accelerators=null, or a hardware option of one node",
    ),
    Row(
        "backend.convert_model", refuse="TRL trains the Hugging Face model itself; set it to false"
    ),
    Row("env.limits", lambda s: {"ddp_timeout": _patience_s(s)}),
    Row("env.options", implemented_by="xp.backends.trl.worker.rollout", refuse=_depends_on_rows),
)
"""Fields outside the parity table's sections that have native keys or refusals."""

BACKEND = (*PARALLEL, *ENGINE, *PLACE)
