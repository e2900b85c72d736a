"""Sends weights from SkyRL's policy workers to the engine by a file, instead of CUDA IPC or NCCL."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from skyrl.backends.skyrl_train.weight_sync.base import WeightChunk
from skyrl.backends.skyrl_train.weight_sync.transfer_strategy import (
    WeightSyncInitInfo,
    WeightTransferSender,
    WeightTransferStrategy,
)

from xp.lib.atomic import replacing
from xp.lib.loopback import HOST, free_port


@dataclass
class FileInfo(WeightSyncInitInfo):  # type: ignore[misc]
    """Info with SkyRL's required fields only."""


class FileSender(WeightTransferSender):  # type: ignore[misc]
    """Writes the weights that SkyRL extracts; all ranks gather, the first rank writes.

    Args:
        path: path of the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    async def send_chunks(self, chunks: Iterable[WeightChunk], weight_metadata: Any = None) -> None:
        import torch.distributed as dist
        from safetensors.torch import save_file

        del weight_metadata
        weights = {
            name: tensor.contiguous().clone()
            for chunk in chunks
            for name, tensor in zip(chunk.names, chunk.tensors, strict=True)
        }
        if dist.get_rank() == 0:
            with replacing(self._path) as part:
                save_file(weights, part)

    def teardown(self) -> None:
        """Does nothing: there are no resources."""


class FileTransfer(WeightTransferStrategy):  # type: ignore[misc]
    """Implementation of SkyRL's interface for weight transfer."""

    @staticmethod
    def create_init_info(ie_cfg: Any, inference_world_size: int | None = None) -> FileInfo:
        del ie_cfg, inference_world_size
        return FileInfo(override_existing_receiver=True)

    @staticmethod
    def get_vllm_transfer_engine() -> type:
        raise NotImplementedError("there is no vLLM in a rehearsal")

    @staticmethod
    def create_sender(init_info: FileInfo, inference_client: Any) -> FileSender:
        del init_info
        return FileSender(inference_client.weights)


@dataclass
class GlooInfo(WeightSyncInitInfo):  # type: ignore[misc]
    """Address of the process group of the first policy worker and the workers of all engines."""

    port: int
    world_size: int
    offset: int = 1
    """Rank of an engine's first worker."""

    def for_servers(self, world_size_per_server: int, num_servers: int, dp_size: int = 1) -> list[GlooInfo]:
        """Returns one info for each server; called by SkyRL."""
        return [
            replace(self, offset=self.offset + number // dp_size * world_size_per_server)
            for number in range(num_servers)
        ]

    def to_api_payload(self) -> dict[str, Any]:
        """Returns the fields of the receiver's xp.worker.gloo_transfer.Meeting."""
        return {"host": HOST, "port": self.port, "world_size": self.world_size, "offset": self.offset}


class GlooSender(WeightTransferSender):  # type: ignore[misc]
    """Announces and sends a whole model; all ranks gather, the first rank sends.

    Args:
        group: process group; None except in the first rank.
        client: SkyRL's client of its inference servers.
    """

    def __init__(self, group: Any, client: Any) -> None:
        self._group, self._client = group, client

    async def send_chunks(self, chunks: Iterable[WeightChunk], weight_metadata: Any = None) -> None:
        import torch.distributed as dist

        del weight_metadata
        weights = [
            (name, tensor.detach().contiguous().clone())
            for chunk in chunks
            for name, tensor in zip(chunk.names, chunk.tensors, strict=True)
        ]
        if self._group is not None:
            await self._send(weights)
        dist.barrier()

    async def _send(self, weights: list[tuple[str, Any]]) -> None:
        from xp.worker.gloo_transfer import Announcement, send

        announced = Announcement(
            [name for name, _ in weights],
            [str(tensor.dtype).removeprefix("torch.") for _, tensor in weights],
            [list(tensor.shape) for _, tensor in weights],
        )
        await self._client._call_all_servers("/start_weight_update", {})
        receiving = asyncio.create_task(self._client.update_named_weights(asdict(announced)))
        await asyncio.to_thread(send, self._group, [tensor for _, tensor in weights])
        await receiving
        await self._client._call_all_servers("/finish_weight_update", {})

    def teardown(self) -> None:
        self._group = None


class GlooTransferStrategy(WeightTransferStrategy):  # type: ignore[misc]
    """Implementation of SkyRL's interface for weight transfer."""

    @staticmethod
    def create_init_info(ie_cfg: Any, inference_world_size: int | None = None) -> GlooInfo:
        del ie_cfg
        assert inference_world_size is not None
        return GlooInfo(override_existing_receiver=True, port=free_port(), world_size=inference_world_size + 1)

    @staticmethod
    def get_vllm_transfer_engine() -> type:
        from xp.worker.gloo_transfer import GlooTransfer

        return GlooTransfer

    @staticmethod
    def create_sender(init_info: GlooInfo, inference_client: Any) -> GlooSender:
        import torch.distributed as dist

        from xp.worker.gloo_transfer import Meeting, join

        group = None
        if dist.get_rank() == 0:
            group = join(Meeting(HOST, init_info.port, init_info.world_size), rank=0)
        return GlooSender(group, inference_client)
