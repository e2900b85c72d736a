"""RunSpec -> the processes of a stage: accelerate's config file, and the arguments of `vllm serve`."""

from __future__ import annotations

import json
from typing import Any

from xp.backends.trl.control.constraints import world_size
from xp.engines.config import VLLMServer
from xp.engines.probe import DEADLINE_S, START_TIMEOUT_S
from xp.planning.rows import longest_in_engine
from xp.spec import DType, RunSpec, Strategy

GLOO = "xp.worker.gloo_transfer.Extension"
"""Receiver of weights in the server on a CPU."""


def accelerate_config(spec: RunSpec) -> str:
    """The YAML file of `accelerate launch`, for two or more processes.

    On several nodes, each node adds its number and the main node's address when it starts.
    """
    import yaml

    is_sharded = spec.backend.parallel.strategy is Strategy.FSDP2
    config: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        # accelerate's name of plain data parallelism, on CPUs too (`use_cpu`).
        "distributed_type": "FSDP" if is_sharded else "MULTI_GPU",
        "num_machines": spec.hardware.num_nodes,
        "machine_rank": 0,
        "num_processes": world_size(spec),
        # Any free port, since two runs may share a machine.
        "main_process_port": 0,
        "mixed_precision": "bf16" if spec.model.dtype is DType.BFLOAT16 else "no",
        "use_cpu": spec.hardware.accelerator == "cpu",
    }
    if is_sharded:
        config["fsdp_config"] = {
            "fsdp_version": 2,
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_reshard_after_forward": True,
            "fsdp_offload_params": spec.backend.parallel.offload_parameters,
            # A checkpoint is a whole Hugging Face model, for any number of processes.
            "fsdp_state_dict_type": "FULL_STATE_DICT",
            "fsdp_cpu_ram_efficient_loading": True,
            # GRPOConfig's activation_checkpointing does it.
            "fsdp_activation_checkpointing": False,
        }
    text: str = yaml.safe_dump(config, sort_keys=False)
    return text


def server(spec: RunSpec, num_accelerators: int, *, takes_weights: bool) -> VLLMServer:
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


def evaluation_server(spec: RunSpec) -> VLLMServer:
    """A server for evaluations, on all accelerators of the machine."""
    num_accelerators = 0 if spec.hardware.accelerator == "cpu" else spec.trainer_accelerators
    return server(spec, num_accelerators, takes_weights=False)
