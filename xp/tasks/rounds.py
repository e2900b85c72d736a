"""Held-out tasks of an evaluation, and the number of samples of each, the same on every backend."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar


class NamedTask(Protocol):
    """Identity of a task; a row of the task set has these fields."""

    @property
    def task_id(self) -> str: ...


Row = TypeVar("Row", bound=NamedTask)


@dataclass(frozen=True)
class Rounds:
    """Size of one evaluation."""

    num_tasks: int | None
    """Largest number of held-out tasks; None: all of them."""
    samples_per_task: int

    def tasks(self, rows: Sequence[Row]) -> list[Row]:
        """The tasks to play, in the order of `rows`.

        They are chosen by a hash of their names: the choice is the same in every run, and a smaller choice is part of a
        larger one.
        """
        if self.num_tasks is None or self.num_tasks >= len(rows):
            return list(rows)
        ranks = {row.task_id: hashlib.sha256(row.task_id.encode()).digest() for row in rows}
        chosen = set(sorted(ranks, key=ranks.__getitem__)[: self.num_tasks])
        return [row for row in rows if row.task_id in chosen]

    def episodes(self, rows: Sequence[Row]) -> list[Row]:
        """One row per episode: every task once, then every task again, until each has its number of samples."""
        return self.tasks(rows) * self.samples_per_task
