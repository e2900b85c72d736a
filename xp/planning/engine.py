"""RunSpec -> engines: arguments of their servers, and the reasons against one that all backends share."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from xp.engines.config import LocalEngine, VLLMServer
from xp.engines.probe import DEADLINE_S, START_TIMEOUT_S
from xp.models.files import config_of
from xp.models.network import WITH_HEADS, has_own_decoding, stated
from xp.planning.rows import is_corrected, is_to_engine, longest_in_engine
from xp.spec import DType, EngineName, RunSpec, SpeculativeMethod

ON_CPU = (
    *("--device", "cpu", "--attention-backend", "torch_native", "--sampling-backend", "pytorch"),
    *("--grammar-backend", "none", "--disable-cuda-graph"),
)
"""Arguments for any CPU; SGLang's default `intel_amx` needs one of Intel's newer CPUs."""
CACHE_TOKENS_ON_CPU = 32
"""Number of longest episodes in the cache on a CPU, where `--mem-fraction-static` would count the whole memory."""
GLOO = "xp.worker.gloo_transfer.Extension"
"""Receiver of weights in vLLM's server on a CPU."""
OWN_DECODING = "xp's own decoding has no such setting; set {}, or on a GPU backend.engine.name=vllm"


def local_engine_of(spec: RunSpec, name: EngineName) -> LocalEngine:
    """An engine of the sizes of `backend.engine` for evaluations, on all accelerators of one machine."""
    num_accelerators = 0 if spec.hardware.accelerator == "cpu" else spec.trainer_accelerators
    server = None
    if name is EngineName.VLLM:
        server = vllm_server(spec, num_accelerators, takes_weights=False)
    elif name is EngineName.SGLANG:
        server = VLLMServer(sglang_arguments(spec), num_accelerators, START_TIMEOUT_S, DEADLINE_S)
    return LocalEngine(name.value, spec.model.dtype.value, spec.backend.num_threads, server)


def vllm_server(spec: RunSpec, num_accelerators: int, *, takes_weights: bool) -> VLLMServer:
    """A vLLM server on `num_accelerators`; on a CPU, with this number of processes, at least one.

    Args:
        takes_weights: whether a trainer sends weights, over NCCL (trl 1.16.0, trl/scripts/vllm_serve.py
            `build_command`) or, on a CPU, over gloo.
    """
    engine, is_on_cpu = spec.backend.engine, spec.hardware.accelerator == "cpu"
    arguments = [
        *("--tensor-parallel-size", str(engine.tensor_parallel)),
        *("--data-parallel-size", str(max(1, num_accelerators // engine.tensor_parallel))),
        *("--gpu-memory-utilization", str(engine.memory_fraction)),
        *("--max-num-seqs", str(engine.max_sequences)),
        *(("--max-num-batched-tokens", str(engine.max_batched_tokens)) if engine.max_batched_tokens else ()),
        *("--max-model-len", str(longest_in_engine(spec))),
        *("--dtype", spec.model.dtype.value),
        *("--seed", str(spec.seed)),
        # Without the model's own sampling defaults: every request has all parameters.
        *("--generation-config", "vllm"),
        "--enable-prefix-caching" if engine.prefix_caching else "--no-enable-prefix-caching",
        *(["--enforce-eager"] if engine.eager else []),
        # Log-probabilities with the temperature, as in the loss.
        *("--logprobs-mode", "processed_logprobs"),
        *("--uvicorn-log-level", "warning"),
    ]
    arguments += ["--quantization", engine.quantization.value] if engine.quantization else []
    arguments += ["--kv-cache-dtype", engine.kv_cache_dtype.value] if engine.kv_cache_dtype else []
    arguments += ["--enable-expert-parallel"] if engine.expert_parallel > 1 else []
    if takes_weights and engine.speculative is not None:
        draft = {"model": engine.speculative.model, "num_speculative_tokens": engine.speculative.num_tokens}
        arguments += ["--speculative-config", json.dumps({"method": "draft_model", **draft})]
    if takes_weights:
        arguments += ["--weight-transfer-config", json.dumps({"backend": "gloo" if is_on_cpu else "nccl"})]
    # Features that vLLM lacks on a CPU, and the transfer of weights.
    arguments += ["--worker-extension-cls", GLOO] if is_on_cpu else []
    return VLLMServer(tuple(arguments), 0 if is_on_cpu else num_accelerators, START_TIMEOUT_S, DEADLINE_S)


def sglang_arguments(spec: RunSpec) -> tuple[str, ...]:
    """Arguments of SGLang's server, without model, address and port."""
    engine, is_on_cpu = spec.backend.engine, spec.hardware.accelerator == "cpu"
    longest = longest_in_engine(spec)
    num_accelerators = 0 if is_on_cpu else spec.trainer_accelerators
    return (
        *("--tp-size", str(engine.tensor_parallel)),
        *("--dp-size", str(max(1, num_accelerators // engine.tensor_parallel))),
        *("--mem-fraction-static", str(engine.memory_fraction)),
        *("--max-running-requests", str(engine.max_sequences)),
        *(("--chunked-prefill-size", str(engine.max_batched_tokens)) if engine.max_batched_tokens else ()),
        *("--context-length", str(longest)),
        *("--dtype", spec.model.dtype.value),
        *("--random-seed", str(spec.seed)),
        *(() if engine.prefix_caching else ("--disable-radix-cache",)),
        *(("--quantization", engine.quantization.value) if engine.quantization else ()),
        *(("--kv-cache-dtype", "fp8_e4m3") if engine.kv_cache_dtype else ()),
        *(("--ep-size", str(engine.expert_parallel)) if engine.expert_parallel > 1 else ()),
        *(("--disable-cuda-graph",) if engine.eager and not is_on_cpu else ()),
        # Without the model's own sampling defaults: every request has all parameters.
        *("--sampling-defaults", "openai"),
        # SGLang's warm-up would send a request without the key.
        *("--skip-server-warmup", "--log-level-http", "warning"),
        *((*ON_CPU, "--max-total-tokens", str(CACHE_TOKENS_ON_CPU * longest)) if is_on_cpu else ()),
    )


def network_fields(spec: RunSpec) -> Mapping[str, Any]:
    """The fields of model.architecture: the spec's, or those that config.json states; empty: neither is known."""
    model = spec.model
    if model.architecture is not None:
        return model.architecture.model_dump()
    config = None if model.path is None else config_of(model.path, Path(spec.outputs), model.revision)
    return {} if config is None else stated(config)


def no_own_decoding(spec: RunSpec) -> str | None:
    """Returns why xp's own engine cannot decode the model; None if it can, or its family is not known."""
    if has_own_decoding(network_fields(spec)):
        return None
    return f"the layers of model={spec.model.name} keep more than xp's own decoding does, keys and values; set vllm"


def no_fp8(spec: RunSpec, name: str) -> str | None:
    """Returns why the engine's weights or its KV cache cannot be FP8; None if they can, or need not.

    Args:
        spec: the spec.
        name: the field below `backend.engine`.
    """
    engine = spec.backend.engine
    if getattr(engine, name) is None:
        return None
    if engine.name is EngineName.TRANSFORMERS:
        return OWN_DECODING.format("null")
    # vLLM 0.30, quantization/fp8.py `get_supported_act_dtypes`.
    if name == "quantization" and (spec.hardware.accelerator == "cpu" or spec.model.dtype is DType.FLOAT32):
        return "the engine quantises weights of bfloat16 on a GPU; set null"
    if is_corrected(spec) or is_to_engine(spec):
        return None
    return (
        "the engine's probabilities then differ from the trainer's, and the update needs a correction for it; set"
        " algorithm.importance_correction=token_truncate (or another), algorithm.ratio_from=engine, or null here"
    )


def no_expert_parallel(spec: RunSpec, sizes: Collection[int], what: str) -> str | None:
    """Returns why an engine's experts cannot be divided among so many accelerators; None if they can, or need not.

    Args:
        spec: the spec.
        sizes: the sizes above 1 that the engine supports.
        what: the accelerators that these sizes are of.
    """
    size, shape = spec.backend.engine.expert_parallel, spec.model.architecture
    if size == 1:
        return None
    if spec.backend.engine.name is EngineName.TRANSFORMERS:
        return OWN_DECODING.format("1")
    experts = getattr(shape, "num_experts", None)
    if shape is not None and not experts:
        return f"model={spec.model.name} is dense and has no experts to divide; set 1"
    if experts and experts % size:
        return f"must divide the {experts} experts of model={spec.model.name}; got {size}"
    if size in sizes:
        return None
    legal = ", ".join(map(str, sorted({1, *sizes})))
    return f"must be 1, or fit {what}: {legal}; got {size}"


def no_min_p(spec: RunSpec) -> str | None:
    """Returns why `training.min_p` has no effect; None if it has, or is off. Source: vLLM 0.30, sampling_params.py
    `_validate_spec_decode`."""
    is_off = spec.training.min_p == 0 or spec.backend.engine.speculative is None
    return None if is_off else "engines that guess tokens have no min_p; set 0, or backend.engine.speculative=null"


def no_speculation(spec: RunSpec) -> str | None:
    """Returns why the engine cannot guess tokens; None if it can, or need not."""
    speculative, shape = spec.backend.engine.speculative, spec.model.architecture
    if speculative is None:
        return None
    if spec.backend.engine.name is EngineName.TRANSFORMERS:
        return OWN_DECODING.format("null")
    if spec.hardware.accelerator == "cpu":
        return "it is not tested on a CPU; set null"
    is_without = shape is not None and shape.model_type not in WITH_HEADS
    if speculative.method is SpeculativeMethod.MTP and is_without:
        return (
            f"model={spec.model.name} has no heads of multi-token prediction; set null, or method=draft with a smaller"
            " model on backend=trl"
        )
    return None
