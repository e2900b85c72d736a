"""RunSpec -> the config file of `accelerate launch`."""

from __future__ import annotations

from typing import Any

from xp.fields.shared import is_on_cpu
from xp.fields.trl import distributed_type, is_sharded, world_size
from xp.spec import DType, RunSpec


def accelerate_config(spec: RunSpec) -> str:
    """The YAML file of `accelerate launch`, for two or more processes.

    On several nodes, each node adds its number and the main node's address when it starts.
    """
    import yaml

    config: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": distributed_type(spec),
        "num_machines": spec.hardware.num_nodes,
        "machine_rank": 0,
        "num_processes": world_size(spec),
        # Any free port, since two runs may share a machine.
        "main_process_port": 0,
        "mixed_precision": "bf16" if spec.model.dtype is DType.BFLOAT16 else "no",
        "use_cpu": is_on_cpu(spec),
    }
    if is_sharded(spec):
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
