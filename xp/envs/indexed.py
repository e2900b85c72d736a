"""Base of providers with known sizes of splits: checks of bounds and their faults are the same for all of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from xp.envs.base import ProtocolError, Task
from xp.envs.config import EnvConfig


class IndexedProvider(ABC):
    """Part of an xp.envs.base.Provider; it is an xp.envs.base.Lister too."""

    _config: EnvConfig

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._config.name!r})"

    @abstractmethod
    def splits(self) -> tuple[str, ...]:
        """Names of the splits."""

    @abstractmethod
    def _size(self, split: str) -> int:
        """Number of tasks of an existing split."""

    @abstractmethod
    def _specs(self, split: str, indices: Sequence[int]) -> Sequence[Mapping[str, Any]]:
        """Specs of existing tasks."""

    def num_tasks(self, split: str) -> int:
        """Number of tasks of a split; raises ProtocolError if it does not exist."""
        if split not in self.splits():
            raise ProtocolError(
                f"{self!r}: there is no split {split!r}, only {', '.join(self.splits())}"
            )
        return self._size(split)

    def tasks(self, split: str, indices: Sequence[int]) -> list[Task]:
        """See xp.envs.base.Provider; raises ValueError for an index outside the split."""
        size = self.num_tasks(split)
        outside = [index for index in indices if not 0 <= index < size]
        if outside:
            raise ValueError(f"split {split!r} has tasks 0 to {size - 1}, not {outside[:5]}")
        specs = self._specs(split, list(indices))
        return [
            Task(self._config.name, split, index, spec)
            for index, spec in zip(indices, specs, strict=True)
        ]

    def listed(self, split: str) -> list[Task]:
        """See xp.envs.base.Lister."""
        return self.tasks(split, range(self.num_tasks(split)))

    def _check(self, task: Task) -> None:
        """Raises ProtocolError for a task that does not exist."""
        size = self.num_tasks(task.split)
        if not 0 <= task.index < size:
            raise ProtocolError(f"task {task.id}: split {task.split!r} has tasks 0 to {size - 1}")
