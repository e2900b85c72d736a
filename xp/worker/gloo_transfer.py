"""Brings a trainer's weights to a vLLM server over gloo, where there is no NCCL: the server's half, and the sender's.

vLLM's own seam for ways of transfer (vllm.distributed.weight_transfer, 0.28.0) has NCCL and CUDA IPC. The server loads
this module by `--worker-extension-cls xp.worker.gloo_transfer.Extension`, before its model is loaded.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from vllm.distributed.utils import stateless_init_torch_distributed_process_group
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

from xp.worker.plain_weights import keep_plain_weights
from xp.worker.seeded_draws import take_back_draws

BACKEND = "gloo"
"""The name of this way in `--weight-transfer-config`."""
AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"
"""torchrun's variable: torch opens no store, since the one of the launched processes is there."""


@dataclass
class Meeting(WeightTransferInitInfo):  # type: ignore[misc]
    """Address at which sender and receivers connect; the sender is rank 0."""

    host: str
    port: int
    world_size: int
    offset: int = 1
    """Rank of the first worker of an engine."""


@dataclass
class Announcement(WeightTransferUpdateInfo):  # type: ignore[misc]
    """The tensors that follow, in their order."""

    names: list[str]
    dtypes: list[str]
    shapes: list[list[int]]


class GlooTransfer(WeightTransferEngine):  # type: ignore[misc]
    """The half in each of the server's workers."""

    init_info_cls = Meeting
    update_info_cls = Announcement
    _group: Any = None

    def init_transfer_engine(self, init_info: Meeting) -> None:
        parallel = self.parallel_config
        rank = init_info.offset + parallel.data_parallel_index * parallel.world_size + parallel.rank
        self._group = join(init_info, rank)

    def start_weight_update(self) -> None:
        """Nothing is prepared: weights go where they are computed with."""

    def finish_weight_update(self) -> None:
        """Nothing is left to do."""

    def receive_weights(self, update_info: Announcement) -> None:
        announced = zip(update_info.names, update_info.dtypes, update_info.shapes, strict=True)
        for name, dtype, shape in announced:
            tensor = torch.empty(shape, dtype=getattr(torch, dtype))
            self._group.broadcast(tensor, 0).wait()
            self.model.load_weights([(name, tensor)])

    def shutdown(self) -> None:
        self._group = None


def join(meeting: Meeting, rank: int) -> Any:
    """A process group of the sender and all receivers."""
    # Under torchrun the sender would wait for a store of torchrun's at this port, and nobody would open one.
    from_torchrun = os.environ.pop(AGENT_STORE, None)
    try:
        return stateless_init_torch_distributed_process_group(
            meeting.host, meeting.port, rank, meeting.world_size, backend="gloo"
        )
    finally:
        if from_torchrun is not None:
            os.environ[AGENT_STORE] = from_torchrun


def send(group: Any, tensors: Iterable[torch.Tensor]) -> None:
    """The sender's half, in the order of the announcement."""
    for tensor in tensors:
        group.broadcast(tensor.detach().contiguous(), 0).wait()


class Extension:
    """Mixed into vLLM's worker; importing its module is what counts."""


keep_plain_weights()
take_back_draws()
if BACKEND not in WeightTransferEngineFactory._registry:
    WeightTransferEngineFactory.register_engine(BACKEND, GlooTransfer)
