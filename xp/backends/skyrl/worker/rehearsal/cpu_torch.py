"""Replaces CUDA's part of torch by the CPU, in each process of a rehearsal before SkyRL is imported; the router's too,
which Python starts with `spawn`."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from xp.backends.skyrl.worker import process

REAL_ENGINE = "XP_SKYRL_ENGINE"
"""Variable that is not empty if SkyRL's own vLLM servers generate, without a replacement."""
SILENT = (
    "empty_cache",
    "synchronize",
    "set_device",
    "manual_seed",
    "manual_seed_all",
    "reset_peak_memory_stats",
    "ipc_collect",
)


def prepare_process() -> None:
    """Prepares the process like process.prepare_process and installs the replacements; Ray's workers import it by
    name."""
    process.prepare_process()
    import torch

    if getattr(torch.cuda, "xp_rehearsal", False):
        return
    torch.cuda.xp_rehearsal = True
    _cuda(torch)
    _distributed(torch)
    _weight_transfer()
    _peers()


def _cuda(torch: Any) -> None:
    cpu = torch.device("cpu")
    for name in SILENT:
        setattr(torch.cuda, name, lambda *_, **__: None)
    torch.cuda.current_device = lambda: cpu
    torch.cuda.device_count = lambda: 1
    torch.cuda.mem_get_info = lambda *_: (0, 0)
    for name in (
        "memory_allocated",
        "memory_reserved",
        "max_memory_allocated",
        "max_memory_reserved",
    ):
        setattr(torch.cuda, name, lambda *_: 0)
    torch.Tensor.cuda = lambda tensor, *_, **__: tensor
    torch.Tensor.pin_memory = lambda tensor, *_, **__: tensor
    torch.empty = _on_cpu(torch.empty)


def _on_cpu(function: Callable[..., Any]) -> Callable[..., Any]:
    def replacement(*args: Any, **kwargs: Any) -> Any:
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs["device"] = "cpu"
        return function(*args, **kwargs)

    return replacement


def _distributed(torch: Any) -> None:
    """Replaces `cpu:gloo,cuda:nccl`, and meshes of CUDA devices, which SkyRL requests."""
    import torch.distributed as dist
    from torch.distributed import device_mesh

    begin = dist.init_process_group
    mesh = device_mesh.init_device_mesh

    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        return begin(*args, **kwargs | {"backend": "gloo"})

    def init_device_mesh(device_type: str, *args: Any, **kwargs: Any) -> Any:
        del device_type
        return mesh("cpu", *args, **kwargs)

    dist.init_process_group = init_process_group
    device_mesh.init_device_mesh = torch.distributed.device_mesh.init_device_mesh = init_device_mesh


def _weight_transfer() -> None:
    is_real = bool(os.environ.get(REAL_ENGINE))
    with process.standing_in(() if is_real else _vllm()):
        from skyrl.backends.skyrl_train.weight_sync import sources, weight_senders  # noqa: F401

    from xp.backends.skyrl.worker.rehearsal import weights

    weight_senders.build_trainer_engine = weights.gloo_engine if is_real else weights.file_engine
    if is_real:
        from skyrl.backends.skyrl_train.inference_servers import utils as servers

        # xp.worker.gloo_transfer registers it with vLLM, which is not imported elsewhere here.
        servers.get_vllm_receive_backend = lambda *_: "gloo"


def _vllm() -> Sequence[ModuleType]:
    """The parts of vLLM that the two modules above need in order to be imported; SkyRL's source calls the function."""
    base, packed = (
        ModuleType(f"vllm.distributed.weight_transfer.{name}") for name in ("base", "packed_tensor")
    )
    base.WeightSource = object  # type: ignore[attr-defined]
    base.ParamMeta = tuple  # type: ignore[attr-defined]
    base.materialize_full_tensor = lambda tensor: (  # type: ignore[attr-defined]
        tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    )
    packed.DEFAULT_PACKED_BUFFER_SIZE_BYTES = 0  # type: ignore[attr-defined]
    return base, packed


def _peers() -> None:
    """Replaces SkyRL's check of peer access, which needs a node with two GPUs."""
    import skyrl.train.utils.utils as utils

    utils.peer_access_supported = lambda max_num_gpus_per_node: False  # noqa: ARG005


forked: Callable[..., None] | None = None
"""SkyRL's own function, in a process forked from the one that replaced the function."""


def prepare_router() -> None:
    """Makes SkyRL start its router in a prepared process."""
    global forked
    from skyrl.backends.skyrl_train.inference_servers import vllm_router

    forked = vllm_router._run_router_with_logging
    vllm_router._run_router_with_logging = run_router


def run_router(router_args: Any, log_file: str | None) -> None:
    """Prepares the process, then calls SkyRL's own function."""
    process.prepare_process()
    from skyrl.backends.skyrl_train.inference_servers import vllm_router

    (forked or vllm_router._run_router_with_logging)(router_args, log_file)
