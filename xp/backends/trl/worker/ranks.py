"""The training processes of one stage, by torchrun's numbers."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Ranks:
    """Rank of this training process, and number of all processes; without torchrun, the only one."""

    def __init__(self) -> None:
        self.number = int(os.environ.get("RANK", "0"))
        self.count = int(os.environ.get("WORLD_SIZE", "1"))

    @property
    def is_main(self) -> bool:
        return self.number == 0

    def gather(self, own: Sequence[T]) -> list[list[T]]:
        """Values of all ranks, in order of rank; all ranks must call it."""
        if self.count == 1:
            return [list(own)]
        import torch.distributed

        shares: list[list[T]] = [[] for _ in range(self.count)]
        torch.distributed.all_gather_object(shares, list(own))
        return shares

    def wait(self) -> None:
        """Waits until all ranks have called it."""
        self.gather([])
