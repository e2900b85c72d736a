"""The section `backend.engine`, and what follows it in `backend`."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from operator import not_
from typing import Any

from xp.fields import skyrl
from xp.fields.batch_shape import batch_shape
from xp.fields.field import OWN, Check, Column, Field, Native, by_xp
from xp.fields.shared import (
    engine_stays_awake,
    has_correction,
    has_critic,
    has_lora,
    has_own_decoding,
    is_ahead,
    is_colocated,
    is_megatron,
    is_on_cpu,
    model_config,
    uses_vllm,
)
from xp.fields.skyrl import cpu_servers, has_stub, not_on_cpu
from xp.fields.trl import episodes_per_process, has_colocated_engine, node_size, world_size
from xp.lib.models.network import may_have_heads
from xp.spec import DType, EngineName, Placement, RunSpec, SpeculativeMethod


def indivisible_experts(spec: RunSpec, sizes: Collection[int], what: str) -> str | None:
    """Returns why an engine's experts cannot be divided among so many accelerators; None if they can, or need not.

    Args:
        spec: the spec.
        sizes: the sizes above 1 that the engine supports.
        what: the accelerators that these sizes are of.
    """
    size = spec.backend.engine.expert_parallel
    if size in (1, *sizes):
        return None
    legal = ", ".join(map(str, sorted({1, *sizes})))
    return f"must be 1, or fit {what}: {legal}; got {size}; set one of them"


QUANTIZED_BY_VLLM = Column(
    implemented_by="nothing: vLLM quantises the model itself",
    refuse_if=lambda s: s.backend.engine.quantized_model is not None,
    refuse="vLLM quantises the model itself; set null",
    proof=OWN,
)


def _not_decoded(spec: RunSpec, name: str, off: int | None = None) -> str | None:
    """Returns why xp's own decoding cannot have a setting; None if it need not. `off`: the value without it."""
    if not has_own_decoding(spec) or getattr(spec.backend.engine, name) == off:
        return None
    return f"xp's own decoding has no such setting; set {off or 'null'}, or on a GPU backend.engine.name=vllm"


UNCORRECTED = (
    "the engine's probabilities then differ from the trainer's, and the update needs a correction for it; set"
    " algorithm.importance_correction=token_truncate (or another), algorithm.ratio_from=engine, or null here"
)


def _no_quantization(spec: RunSpec) -> str | None:
    if spec.backend.engine.quantization is None or has_own_decoding(spec):
        return _not_decoded(spec, "quantization")
    # vLLM 0.30, quantization/fp8.py `get_supported_act_dtypes`.
    if is_on_cpu(spec) or spec.model.dtype is DType.FLOAT32:
        return "the engine quantises weights of bfloat16 on a GPU; set null"
    return None if has_correction(spec) else UNCORRECTED


def _no_cache_type(spec: RunSpec) -> str | None:
    if spec.backend.engine.kv_cache_dtype is None or has_own_decoding(spec):
        return _not_decoded(spec, "kv_cache_dtype")
    return None if has_correction(spec) else UNCORRECTED


def _undivided_experts(spec: RunSpec) -> str | None:
    shape = spec.model.architecture
    size = spec.backend.engine.expert_parallel
    model = f"model={spec.model.name}"
    if shape is None or has_own_decoding(spec):
        return _not_decoded(spec, "expert_parallel", off=1)
    if size > 1 and not shape.num_experts:
        return f"{model} is dense and has no experts to divide; set 1"
    if (shape.num_experts or 0) % size:
        return f"must divide the {shape.num_experts} experts of {model}; got {size}; set a divisor"
    return None


def _no_heads(spec: RunSpec) -> str | None:
    shape = spec.model.architecture
    speculative = spec.backend.engine.speculative
    if speculative is None or has_own_decoding(spec):
        return _not_decoded(spec, "speculative")
    if shape is None or speculative.method is not SpeculativeMethod.MTP:
        return None
    if may_have_heads(shape.model_dump(), model_config(spec)):
        return None
    return (
        f"model={spec.model.name} has no heads of multi-token prediction; set null, or method=draft with a smaller"
        " model on backend=trl"
    )


# TRL
VLLM_MODE = {Placement.COLOCATED: "colocate", Placement.SEPARATE: "server"}
TRL_BATCHED_TOKENS = 4096
"""TRL's max_num_batched_tokens of a colocated engine (trl/generation/vllm_generation.py); a decoding step takes one
token of each sequence."""
NO_ARGUMENT = "TRL has no argument for this on a colocated engine"


def _served(flag: str, colocated: str = "") -> Callable[[RunSpec], str]:
    """Function that returns the native name of an engine's field: a flag of `vllm serve`, or colocated engines'
    argument."""

    def receives(spec: RunSpec) -> str:
        if has_own_decoding(spec):
            return "nothing: the policy itself generates"
        if has_colocated_engine(spec):
            return colocated
        return f"vllm serve {flag}"

    return receives


def _refused_name(spec: RunSpec) -> str | None:
    name = spec.backend.engine.name
    if name is EngineName.SGLANG:
        fix = "set transformers or vllm on hardware=cpu" if is_on_cpu(spec) else "set vllm"
        return f"TRL does not support sglang; {fix}"
    # Pictures have no other engine.
    if name is EngineName.TRANSFORMERS and not is_on_cpu(spec) and spec.model.images is None:
        return "transformers is xp's own decoding, which is for hardware=cpu; set vllm"
    return None


def _trl_placement(spec: RunSpec) -> Native:
    """Keys of the engines' placement; a colocated engine frees its memory during training, except on a CPU and where
    both fit."""
    if not uses_vllm(spec):
        return {}
    sleeps = has_colocated_engine(spec) and not is_on_cpu(spec) and not engine_stays_awake(spec)
    return {"vllm_mode": VLLM_MODE[spec.backend.engine.placement], "vllm_enable_sleep_mode": sleeps}


def _indivisible(spec: RunSpec) -> str | None:
    engine = spec.backend.engine
    size = engine.tensor_parallel
    generating = engine.accelerators or world_size(spec)
    if not uses_vllm(spec):
        return None
    if spec.hardware.num_nodes > 1 and has_colocated_engine(spec) and node_size(spec) % size:
        return f"{size} does not divide the {node_size(spec)} training processes of a node; set a divisor"
    if generating % size:
        return f"{size} does not divide the {generating} accelerators that generate; set a divisor"
    return None


def _too_many(spec: RunSpec) -> str | None:
    engine = spec.backend.engine
    at_once = episodes_per_process(spec) * engine.tensor_parallel
    if not has_colocated_engine(spec) or at_once <= min(engine.max_sequences, TRL_BATCHED_TOKENS):
        return None
    what = f"TRL's colocated engine takes all {at_once} episodes of its processes at once"
    if at_once > TRL_BATCHED_TOKENS:
        return (
            f"{what}, more than the {TRL_BATCHED_TOKENS} tokens that TRL lets it compute in one pass; set"
            " backend.engine.placement=separate (and backend.engine.accelerators), or fewer episodes per step"
        )
    return f"{what}; set {at_once} or more, or placement=separate"


def _batched_elsewhere(spec: RunSpec) -> str | None:
    engine = spec.backend.engine
    if engine.max_batched_tokens is None or engine.placement is Placement.SEPARATE:
        return None
    if engine.name is EngineName.VLLM:
        return f"TRL sets {TRL_BATCHED_TOKENS} for its colocated engine; set null, or placement=separate"
    return "the policy itself generates; set null"


def _of_server(
    name: str,
    flag: str,
    fixed: Any,
    refuse: Check = lambda _: None,
    proof: Mapping[str, str] | None = None,
) -> Column:
    """Column of a flag of vLLM that only a server has; colocated engines have the value `fixed`."""

    def refused(spec: RunSpec) -> str | None:
        if has_colocated_engine(spec) and getattr(spec.backend.engine, name) != fixed:
            legal = "null" if fixed is None else str(fixed).lower()
            return f"{NO_ARGUMENT}; set {legal}, or placement=separate (and backend.engine.accelerators)"
        return refuse(spec)

    def implemented(spec: RunSpec) -> str:
        is_off = fixed is not True and getattr(spec.backend.engine, name) == fixed
        if is_off:
            return "nothing: off"
        return _served(flag, colocated=f"nothing: {NO_ARGUMENT}")(spec)

    return Column(
        implemented_by=implemented,
        refuse=refused,
        proof={"no argument": "trl::a_colocated_engine_has_these_arguments", **(proof or {})},
    )


def _own_heads(spec: RunSpec) -> str | None:
    speculative = spec.backend.engine.speculative
    if speculative is None or speculative.method is SpeculativeMethod.DRAFT:
        return None
    return "TRL trains and saves the model without its heads; set method=draft with a smaller model, or use backend=skyrl"


# SkyRL
SKYRL_BATCHED_TOKENS = 8192
"""SkyRL's default of max_num_batched_tokens."""


def _skyrl_placement(spec: RunSpec) -> str | None:
    if is_colocated(spec):
        return None
    if has_stub(spec) and not is_ahead(spec):
        return not_on_cpu("set colocated, or backend.engine.name=vllm")
    if not has_critic(spec):
        return None
    return "with separate engines SkyRL gives a critic its own accelerators, which xp does not support; set colocated"


def _unused(spec: RunSpec) -> str:
    if has_stub(spec):
        return "xp's replacement for vLLM does not use it."
    return ""


def _fp8(name: str) -> Column:
    """Column of a type of vLLM's, which quantises the weights of each update as those of a checkpoint (vLLM 0.30,
    model_loader/reload)."""
    key = f"{skyrl.ENGINE}.engine_init_kwargs.{name}"
    return Column(key, render_if=lambda s: getattr(s.backend.engine, name) is not None)


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


# Slime
def _training_nodes(spec: RunSpec) -> Native:
    """Flags of the nodes that train, and of their accelerators for it."""
    batch = batch_shape(spec)
    nodes = max(1, math.ceil(batch.training / batch.per_node))
    return {"--actor-num-nodes": nodes, "--actor-num-gpus-per-node": batch.training // nodes}


def _expert_sizes(spec: RunSpec) -> list[int]:
    """SGLang's sizes: divisors of an engine's accelerators."""
    size = spec.backend.engine.tensor_parallel
    return [number for number in range(2, size + 1) if size % number == 0]


def _quantized_by(spec: RunSpec) -> str:
    """What receives the engines' model with FP8 weights; exports and the training are not in FP8."""
    if spec.backend.engine.quantization is None:
        return "nothing: off"
    return "--hf-checkpoint; exports in the model's own type by xp.backends.slime.worker.training"


ENGINE = (
    Field(
        "backend.engine.name",
        trl=Column(
            lambda s: {"use_vllm": uses_vllm(s)},
            refuse=_refused_name,
            proof={"does not support sglang": "trl::it_knows_no_sglang", "xp's own decoding": OWN},
        ),
        skyrl=Column(
            cpu_servers,
            implemented_by="SkyRL's inference interface",
            note="xp's replacement for vLLM is used.",
            note_if=has_stub,
            refuse_if=lambda s: not uses_vllm(s) and not has_stub(s),
            refuse="SkyRL supports only vLLM; set vllm, or on hardware=cpu transformers for xp's stub",
            proof={"xp's replacement for vLLM": OWN, "only vLLM": "skyrl::vllm_is_its_only_engine"},
        ),
        slime=Column(
            implemented_by="SGLang, Slime's only engine",
            only=EngineName.SGLANG,
            refuse=lambda s: (
                f"Slime generates with SGLang only; set sglang, or use backend=skyrl for {s.backend.engine.name}"
            ),
            proof="slime::sglang_is_its_only_engine",
        ),
    ),
    Field(
        "backend.engine.placement",
        trl=Column(
            _trl_placement,
            implemented_by=lambda s: _served("")(s) if has_own_decoding(s) else "",
            refuse_if=lambda s: has_own_decoding(s) and not is_colocated(s),
            refuse="the policy itself generates; set colocated, or engine.name=vllm",
            proof=OWN,
        ),
        skyrl=Column(
            lambda s: {"trainer.placement.colocate_all": is_colocated(s)},
            refuse=_skyrl_placement,
            proof=OWN,
        ),
        slime=Column(
            lambda s: {
                "--colocate": is_colocated(s),
                **_training_nodes(s),
                "--num-gpus-per-node": s.trainer_accelerators,
            }
        ),
    ),
    Field(
        "backend.engine.accelerators",
        trl=Column(
            implemented_by=_served(
                "on these, --data-parallel-size engines of them", colocated="none of their own"
            ),
            refuse_if=lambda s: (
                not is_on_cpu(s)
                and (s.backend.engine.accelerators or 0) >= max(1, s.trainer_accelerators)
            ),
            refuse=lambda s: (
                f"{s.backend.engine.accelerators} of {s.trainer_accelerators} accelerators leave none to"
                " train on; lower it, or set placement=colocated and accelerators=null"
            ),
            proof=OWN,
        ),
        skyrl=Column(lambda s: {f"{skyrl.ENGINE}.num_engines": batch_shape(s).engines}),
        slime=Column(lambda s: {"--rollout-num-gpus": batch_shape(s).generating}),
    ),
    Field(
        "backend.engine.tensor_parallel",
        trl=Column(
            "vllm_tensor_parallel_size",
            render_if=has_colocated_engine,
            implemented_by=_served("--tensor-parallel-size"),
            refuse=_indivisible,
            proof=OWN,
        ),
        skyrl=Column(
            f"{skyrl.ENGINE}.tensor_parallel_size",
            refuse_if=lambda s: is_on_cpu(s) and s.backend.engine.tensor_parallel > 1,
            refuse=not_on_cpu("set 1"),
            proof=OWN,
        ),
        slime="--rollout-num-gpus-per-engine",
    ),
    Field(
        "backend.engine.memory_fraction",
        trl=Column(
            "vllm_gpu_memory_utilization",
            render_if=has_colocated_engine,
            implemented_by=_served("--gpu-memory-utilization"),
        ),
        skyrl=Column(f"{skyrl.ENGINE}.gpu_memory_utilization", note=_unused, proof=OWN),
        slime="--sglang-mem-fraction-static",
    ),
    Field(
        "backend.engine.max_sequences",
        trl=Column(
            implemented_by=_served("--max-num-seqs", colocated="max_num_seqs, set by TRL"),
            note_if=has_colocated_engine,
            note="TRL gives its engine all episodes of its processes at once; refused if these are more.",
            refuse=_too_many,
            proof="trl::a_colocated_engine_has_these_arguments",
        ),
        skyrl=Column(f"{skyrl.ENGINE}.max_num_seqs", note=_unused, proof=OWN),
        slime=Column(
            lambda s: {
                "--sglang-max-running-requests": s.backend.engine.max_sequences,
                # Slime's own bound on concurrent episodes, including those that wait for their environments.
                "--sglang-server-concurrency": math.ceil(
                    s.training.episodes_per_step / batch_shape(s).engines
                ),
            },
            note="Slime starts all episodes of a step at once; the engine queues the rest.",
            proof="slime::a_step_starts_all_its_episodes",
        ),
    ),
    Field(
        "backend.engine.max_batched_tokens",
        trl=Column(
            implemented_by=_served(
                "--max-num-batched-tokens",
                colocated=f"max_num_batched_tokens={TRL_BATCHED_TOKENS}, set by TRL",
            ),
            refuse=_batched_elsewhere,
            proof={
                "for its colocated engine": "trl::a_colocated_engine_has_these_arguments",
                "the policy itself generates": OWN,
            },
        ),
        skyrl=Column(
            f"{skyrl.ENGINE}.max_num_batched_tokens",
            render_if=lambda s: s.backend.engine.max_batched_tokens,
            note=_unused,
            refuse_if=lambda s: (
                s.backend.engine.max_batched_tokens is None
                and s.backend.engine.max_sequences > SKYRL_BATCHED_TOKENS
                and not has_stub(s)
            ),
            refuse=lambda s: (
                f"SkyRL's default is {SKYRL_BATCHED_TOKENS}; a decoding step takes one token of each of an engine's"
                f" {s.backend.engine.max_sequences} sequences; set {s.backend.engine.max_sequences} or more"
            ),
            proof={"xp's replacement for vLLM": OWN, "": OWN},
        ),
        slime="--sglang-chunked-prefill-size",
    ),
    Field(
        "backend.engine.eager",
        trl=_of_server("eager", "--enforce-eager", fixed=False),
        skyrl=Column(
            f"{skyrl.ENGINE}.enforce_eager",
            note=_unused,
            refuse_if=lambda s: has_lora(s) and not is_megatron(s) and s.backend.engine.eager,
            refuse="SkyRL silently enables CUDA graphs for adapters; set it to false",
            proof={
                "xp's replacement for vLLM": OWN,
                "silently enables": "skyrl::adapters_have_cuda_graphs",
            },
        ),
        slime="--sglang-disable-cuda-graph",
    ),
    Field(
        "backend.engine.prefix_caching",
        trl=_of_server("prefix_caching", "--enable-prefix-caching", fixed=True),
        skyrl=Column(f"{skyrl.ENGINE}.enable_prefix_caching", note=_unused, proof=OWN),
        slime=Column("--sglang-disable-radix-cache", not_),
    ),
    Field(
        "backend.engine.quantization",
        trl=_of_server("quantization", "--quantization", fixed=None),
        skyrl=_fp8("quantization"),
        slime=Column(
            implemented_by=_quantized_by,
            refuse_if=lambda s: (
                s.backend.engine.quantization is not None
                and s.backend.engine.quantized_model is None
            ),
            refuse="Slime quantises its updates as an FP8 checkpoint of the model is; make one by its"
            " tools/convert_hf_to_fp8.py and set backend.engine.quantized_model=DIRECTORY, set null, or use"
            " backend=skyrl or trl",
            proof="slime::updates_are_quantised_as_the_checkpoint_is",
        ),
        xp=Column(
            refuse=_no_quantization,
            proof={
                "xp's own decoding": OWN,
                "weights of bfloat16": "engines::fp8_weights_are_made_of_half_precision",
                "the update needs a correction": OWN,
            },
        ),
    ),
    Field(
        "backend.engine.quantized_model",
        trl=QUANTIZED_BY_VLLM,
        skyrl=QUANTIZED_BY_VLLM,
        slime=Column(implemented_by=_quantized_by, proof=OWN),
    ),
    Field(
        "backend.engine.kv_cache_dtype",
        trl=_of_server("kv_cache_dtype", "--kv-cache-dtype", fixed=None),
        skyrl=_fp8("kv_cache_dtype"),
        slime=Column("--sglang-kv-cache-dtype", {None: None, "fp8": "fp8_e4m3"}.get),
        xp=Column(
            refuse=_no_cache_type,
            proof={
                "xp's own decoding": OWN,
                "the update needs a correction": OWN,
                "no attention over FP8": "engines::attention_over_fp8_needs_ampere",
            },
        ),
    ),
    Field(
        "backend.engine.expert_parallel",
        trl=_of_server(
            "expert_parallel",
            "--enable-expert-parallel, over all accelerators of a server",
            fixed=1,
            refuse=lambda s: indivisible_experts(
                s,
                (s.backend.engine.accelerators or 1,),
                "all accelerators of the server (backend.engine.accelerators)",
            ),
            proof={"must be 1, or fit": OWN},
        ),
        # Source: skyrl 0.4.0, train/utils/utils.py `validate_inference_engine_cfg`.
        skyrl=Column(
            f"{skyrl.ENGINE}.expert_parallel_size",
            refuse=lambda s: indivisible_experts(
                s,
                (s.backend.engine.tensor_parallel,),
                "all accelerators of an engine (backend.engine.tensor_parallel)",
            ),
            proof=OWN,
        ),
        slime=Column(
            "--sglang-ep-size",
            refuse=lambda s: indivisible_experts(
                s, _expert_sizes(s), "an engine's accelerators (backend.engine.tensor_parallel)"
            ),
            proof=OWN,
        ),
        xp=Column(refuse=_undivided_experts, proof=OWN),
    ),
    Field(
        "backend.engine.speculative",
        trl=_of_server(
            "speculative",
            "--speculative-config",
            fixed=None,
            refuse=_own_heads,
            proof={"without its heads": "trl::a_model_is_loaded_without_its_heads"},
        ),
        skyrl=Column(
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
            proof={
                "reaches no other weights": "skyrl::the_loss_of_its_heads_stays_in_them",
                "own heads only": "skyrl::guesses_are_of_the_models_own_heads",
                "under Megatron only": "skyrl::guesses_are_of_the_models_own_heads",
            },
        ),
        # SGLang's speculative workers load an update into their draft too (`update_weights_from_tensor`).
        slime=Column(
            refuse="xp writes no heads of multi-token prediction for Megatron, and SGLang loads each update into any other"
            " draft too; set null, or use backend=trl (method=draft) or skyrl (method=mtp)",
            proof="engines::sglang_loads_an_update_into_its_draft",
        ),
        xp=Column(
            refuse=_no_heads,
            proof={
                "has no heads of multi-token prediction": "engines::vllm_knows_these_families_heads",
                "": OWN,
            },
        ),
    ),
    *by_xp(
        {
            "backend.num_threads": "xp.planning.stages",
            "backend.overrides": "xp.planning.native_keys",
        }
    ),
)
