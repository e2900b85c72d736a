"""Sends a trainer's weights to a vLLM server over gloo, for machines without NCCL: receiver and sender.

vLLM's interface for weight transfer (vllm.distributed.weight_transfer, 0.30.0) supports NCCL and CUDA IPC. The server
loads this module by `--worker-extension-cls xp.worker.gloo_transfer.Extension`, before its model is loaded.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

import torch
from vllm.distributed.utils import stateless_init_torch_distributed_process_group
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

from xp.worker.vllm_on_cpu import keep_plain_weights, take_back_draws

BACKEND = "gloo"
"""Name of this backend in `--weight-transfer-config`."""
AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"
"""torchrun's variable, with which torch uses the existing store of the launched processes."""


@dataclass
class RendezvousInfo(WeightTransferInitInfo):  # type: ignore[misc]
    """Address of the process group; the sender is rank 0."""

    host: str
    port: int
    world_size: int
    rank_offset: int = 1
    """Rank of an engine's first worker."""


@dataclass
class Announcement(WeightTransferUpdateInfo):  # type: ignore[misc]
    """The tensors that follow, in order."""

    names: list[str]
    dtypes: list[str]
    shapes: list[list[int]]


class GlooTransfer(WeightTransferEngine):  # type: ignore[misc]
    """Receiver in each of the server's workers."""

    init_info_cls = RendezvousInfo
    update_info_cls = Announcement
    _group: Any = None

    def init_transfer_engine(self, init_info: RendezvousInfo) -> None:
        parallel = self.parallel_config
        rank = (
            init_info.rank_offset
            + parallel.data_parallel_index * parallel.world_size
            + parallel.rank
        )
        self._group = join_group(init_info, rank)

    def start_weight_update(self) -> None:
        """Does nothing: weights are received in place."""

    def finish_weight_update(self) -> None:
        """Does nothing: the weights are complete."""

    def receive_weights(self, update_info: Announcement) -> None:
        # In one call: vLLM refuses a tied head whose embeddings the same call does not load.
        self.model.load_weights(self._received(update_info))

    def _received(self, announced: Announcement) -> Iterator[tuple[str, torch.Tensor]]:
        for name, dtype, shape in zip(
            announced.names, announced.dtypes, announced.shapes, strict=True
        ):
            tensor = torch.empty(shape, dtype=getattr(torch, dtype))
            self._group.broadcast(tensor, 0).wait()
            yield name, tensor

    def shutdown(self) -> None:
        self._group = None


def join_group(rendezvous: RendezvousInfo, rank: int) -> Any:
    """Joins the process group of the sender and all receivers."""
    # Under torchrun the sender would wait for torchrun's store at this port, which does not exist.
    from_torchrun = os.environ.pop(AGENT_STORE, None)
    try:
        return stateless_init_torch_distributed_process_group(
            rendezvous.host, rendezvous.port, rank, rendezvous.world_size, backend="gloo"
        )
    finally:
        if from_torchrun is not None:
            os.environ[AGENT_STORE] = from_torchrun


def open_group(rendezvous: RendezvousInfo, send_address: Callable[[dict[str, Any]], object]) -> Any:
    """The process group of this sender and all receivers.

    Args:
        rendezvous: its address.
        send_address: gives the address to the receivers, and returns when they have joined.
    """
    with ThreadPoolExecutor(1) as pool:
        receivers = pool.submit(send_address, asdict(rendezvous))
        group = join_group(rendezvous, rank=0)
        receivers.result()
    return group


def send(
    group: Any,
    announced: Announcement,
    tensors: Iterable[torch.Tensor],
    announce: Callable[[dict[str, Any]], object],
) -> None:
    """Sends the tensors, in the order of the announcement, of which `announce` tells the receivers."""
    with ThreadPoolExecutor(1) as pool:
        receiving = pool.submit(announce, asdict(announced))
        for tensor in tensors:
            group.broadcast(tensor.detach().contiguous(), 0).wait()
        receiving.result()


class Extension:
    """Empty mixin of vLLM's worker; importing its module registers the backend."""


keep_plain_weights()
take_back_draws()
if BACKEND not in WeightTransferEngineFactory._registry:
    WeightTransferEngineFactory.register_engine(BACKEND, GlooTransfer)
