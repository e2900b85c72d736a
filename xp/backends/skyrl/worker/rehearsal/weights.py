"""Trainer engines of a rehearsal, which send weights by a file or over gloo instead of CUDA IPC or NCCL.

They replace `build_trainer_engine` in skyrl.backends.skyrl_train.weight_sync.weight_senders (cpu_torch.py).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from skyrl.backends.skyrl_train.weight_sync.control_plane import (
    SkyrlWeightSyncClient,
    nccl_init_payloads,
)
from skyrl.backends.skyrl_train.weight_sync.weight_senders import SkyrlTrainerCapabilities

from xp.lib.atomic import replacing
from xp.lib.loopback import HOST, free_port


class FileEngine(SkyrlTrainerCapabilities):  # type: ignore[misc]
    """Writes the weights; all ranks gather, the first rank writes.

    Args:
        path: path of the file.
        source: SkyRL's source of names and whole tensors.
    """

    def __init__(self, path: Path, source: Any) -> None:
        self._path = path
        self._source = source

    def send_weights(self) -> None:
        from safetensors.torch import save_file

        weights = {name: tensor.clone() for name, tensor in self._source}
        if dist.get_rank() == 0:
            with replacing(self._path) as part:
                save_file(weights, part)


class GlooEngine(SkyrlTrainerCapabilities):  # type: ignore[misc]
    """Announces and sends a whole model; all ranks gather, the first rank sends.

    Args:
        client: SkyRL's client of the servers, as far as weights are concerned.
        source: SkyRL's source of names and whole tensors.
        world_size: number of all engines' workers, and the sender.
    """

    def __init__(self, client: Any, source: Any, world_size: int) -> None:
        from xp.worker.gloo_transfer import RendezvousInfo, open_group

        self._client = client
        self._source = source
        self._group = None
        if dist.get_rank() == 0:
            meeting = RendezvousInfo(HOST, free_port(), world_size)
            self._group = open_group(meeting, client.init_weight_transfer_engine)

    def send_weights(self) -> None:
        from xp.worker.gloo_transfer import Announcement, send

        names, tensors = zip(
            *((name, tensor.clone()) for name, tensor in self._source), strict=True
        )
        if self._group is None:
            return
        dtypes = [str(tensor.dtype).removeprefix("torch.") for tensor in tensors]
        announced = Announcement(list(names), dtypes, [list(tensor.shape) for tensor in tensors])
        self._client.start_weight_update()
        send(self._group, announced, tensors, self._client.update_weights)
        self._client.finish_weight_update()


def file_engine(
    *, ie_cfg: Any, source_factory: Any, server_urls: list[str], **_: Any
) -> FileEngine:
    """Takes the arguments of SkyRL's function; the only "server" is the path of the file (engine.py)."""
    dtype = getattr(torch, ie_cfg.model_dtype)
    return FileEngine(Path(server_urls[0]), source_factory(dtype, "nccl"))


def gloo_engine(
    *,
    ie_cfg: Any,
    source_factory: Any,
    server_urls: list[str],
    data_parallel_size: int,
    inference_world_size: int,
    **_: Any,
) -> GlooEngine:
    """Takes the arguments of SkyRL's function."""
    client = SkyrlWeightSyncClient(
        server_urls, data_parallel_size, init_payload_fn=nccl_init_payloads
    )
    source = source_factory(getattr(torch, ie_cfg.model_dtype), "nccl")
    return GlooEngine(client, source, inference_world_size + 1)
