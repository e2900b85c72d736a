"""Sends weights from SkyRL's policy workers to the engine by a file, instead of CUDA IPC or NCCL."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skyrl.backends.skyrl_train.weight_sync.base import WeightChunk
from skyrl.backends.skyrl_train.weight_sync.transfer_strategy import (
    WeightSyncInitInfo,
    WeightTransferSender,
    WeightTransferStrategy,
)

from xp.lib.atomic import replacing


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
