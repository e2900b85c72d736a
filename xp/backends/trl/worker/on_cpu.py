"""TRL's vLLM on a machine without accelerators: replaces TRL 1.16.0's uses of CUDA by the CPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

from xp.lib.loopback import HOST

Metadata = Sequence[tuple[str, str, Sequence[int]]]
"""Name, type and shape of each tensor."""


def send_over_gloo() -> None:
    """Makes TRL's client of a vLLM server send weights over gloo, instead of NCCL, which needs a GPU."""
    from trl.generation import vllm_generation

    base: Any = vllm_generation.VLLMClient

    class CpuClient(base):  # type: ignore[misc]
        def init_communicator(self, device: Any = 0) -> None:
            from xp.worker.gloo_transfer import Meeting, join

            del device
            meeting = Meeting(HOST, self.group_port, self.get_world_size() + 1)
            with ThreadPoolExecutor(1) as pool:
                server = pool.submit(self._tell, "init_weight_transfer_engine", {"init_info": asdict(meeting)})
                self.communicator = join(meeting, rank=0)
                server.result()

        def update_named_params(self, metadata: Metadata, named_params: Iterator[tuple[str, Any]]) -> None:
            from xp.worker.gloo_transfer import Announcement, send

            names, dtypes, shapes = (list(column) for column in zip(*metadata, strict=True))
            announced = asdict(Announcement(names, dtypes, shapes))
            self._start_weight_update()
            with ThreadPoolExecutor(1) as pool:
                server = pool.submit(self._tell, "update_weights", {"update_info": announced})
                send(self.communicator, (tensor for _, tensor in named_params))
                server.result()
            self._finish_weight_update()

        def close_communicator(self) -> None:
            self.communicator = None

        def _tell(self, path: str, body: dict[str, Any]) -> Any:
            return self._post(f"{self.base_url}/{path}", json=body)

    vllm_generation.VLLMClient = CpuClient
