"""RunSpec -> engines: arguments of their servers."""

from __future__ import annotations

import json

from xp.fields.shared import is_on_cpu, longest_in_engine
from xp.spec import EngineName, RunSpec
from xp.worker.engines.config import DEADLINE_S, START_TIMEOUT_S, VLLMServer

ON_CPU = (
    *("--device", "cpu", "--attention-backend", "torch_native", "--sampling-backend", "pytorch"),
    *("--grammar-backend", "none", "--disable-cuda-graph"),
)
"""Arguments for any CPU; SGLang's default `intel_amx` needs one of Intel's newer CPUs."""
CACHE_TOKENS_ON_CPU = 32
"""Number of longest episodes in the cache on a CPU, where `--mem-fraction-static` would count the whole memory."""
GLOO = "xp.worker.gloo_transfer.Extension"
"""Receiver of weights in vLLM's server on a CPU."""

READS_PICTURES = "vllm.entrypoints.scale_out.token_in_token_out.mm_features"
"""Module of vLLM 0.30 and later, whose server takes tokens with pictures."""


def evaluation_server(spec: RunSpec, name: EngineName) -> VLLMServer | None:
    """The server of an evaluation's engine, with the sizes of `backend.engine`, on all accelerators of one machine.
    None means transformers, which needs none."""
    accelerators = num_accelerators(spec)
    if name is EngineName.VLLM:
        return vllm_server(spec, accelerators, takes_weights=False)
    if name is EngineName.SGLANG:
        return VLLMServer(sglang_arguments(spec), accelerators, START_TIMEOUT_S, DEADLINE_S)
    return None


def num_accelerators(spec: RunSpec) -> int:
    """Accelerators of one machine, without those of a served judge; 0 on a CPU."""
    return 0 if is_on_cpu(spec) else spec.trainer_accelerators


def _flag(name: str, value: object) -> tuple[str, ...]:
    """A flag with its value; nothing without a value."""
    return () if value is None else (name, str(value))


def vllm_server(spec: RunSpec, accelerators: int, *, takes_weights: bool) -> VLLMServer:
    """A vLLM server; on a CPU, with one process or more.

    Args:
        spec: the run.
        accelerators: number of its accelerators, or of its processes on a CPU.
        takes_weights: whether a trainer sends weights, over NCCL (trl 1.16.0, trl/scripts/vllm_serve.py
            `build_command`) or, on a CPU, over gloo.
    """
    engine = spec.backend.engine
    on_cpu = is_on_cpu(spec)
    arguments = [
        *("--tensor-parallel-size", str(engine.tensor_parallel)),
        *("--data-parallel-size", str(max(1, accelerators // engine.tensor_parallel))),
        *("--gpu-memory-utilization", str(engine.memory_fraction)),
        *("--max-num-seqs", str(engine.max_sequences)),
        *_flag("--max-num-batched-tokens", engine.max_batched_tokens),
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
        *_flag("--quantization", engine.quantization),
        *_flag("--kv-cache-dtype", engine.kv_cache_dtype),
    ]
    if engine.expert_parallel > 1:
        arguments += ["--enable-expert-parallel"]
    if takes_weights and engine.speculative is not None:
        draft = {
            "method": "draft_model",
            "model": engine.speculative.model,
            "num_speculative_tokens": engine.speculative.num_tokens,
        }
        arguments += ["--speculative-config", json.dumps(draft)]
    if takes_weights:
        transfer = {"backend": "gloo" if on_cpu else "nccl"}
        arguments += ["--weight-transfer-config", json.dumps(transfer)]
    images = spec.model.images
    if images is not None:
        # The path that takes tokens with pictures.
        limits = json.dumps(images.vllm_limits)
        arguments += ["--enable-scale-out", "--limit-mm-per-prompt", limits]
    # Features that vLLM lacks on a CPU, and the transfer of weights.
    if on_cpu:
        accelerators = 0
        arguments += ["--worker-extension-cls", GLOO]
    return VLLMServer(tuple(arguments), accelerators, START_TIMEOUT_S, DEADLINE_S)


def sglang_arguments(spec: RunSpec) -> tuple[str, ...]:
    """Arguments of SGLang's server, without model, address and port."""
    engine = spec.backend.engine
    on_cpu = is_on_cpu(spec)
    longest = longest_in_engine(spec)
    arguments = [
        *("--tp-size", str(engine.tensor_parallel)),
        *("--dp-size", str(max(1, num_accelerators(spec) // engine.tensor_parallel))),
        *("--mem-fraction-static", str(engine.memory_fraction)),
        *("--max-running-requests", str(engine.max_sequences)),
        *_flag("--chunked-prefill-size", engine.max_batched_tokens),
        *("--context-length", str(longest)),
        *("--dtype", spec.model.dtype.value),
        *("--random-seed", str(spec.seed)),
    ]
    if not engine.prefix_caching:
        arguments.append("--disable-radix-cache")
    arguments += _flag("--quantization", engine.quantization)
    if engine.kv_cache_dtype:
        arguments += ["--kv-cache-dtype", "fp8_e4m3"]
    if engine.expert_parallel > 1:
        arguments += ["--ep-size", str(engine.expert_parallel)]
    if engine.eager and not on_cpu:
        arguments.append("--disable-cuda-graph")
    # Without the model's own sampling defaults: every request has all parameters.
    arguments += ["--sampling-defaults", "openai"]
    # SGLang's warm-up would send a request without the key.
    arguments += ["--skip-server-warmup", "--log-level-http", "warning"]
    if on_cpu:
        arguments += [*ON_CPU, "--max-total-tokens", str(CACHE_TOKENS_ON_CPU * longest)]
    return tuple(arguments)
