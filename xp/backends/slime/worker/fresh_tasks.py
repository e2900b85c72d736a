"""Slime's sources of tasks, where a step begins before the one before has its checkpoint, or draws any number of tasks.

Under dynamic sampling, Slime's own draws a whole batch for a group that it drops, trains on the groups that end first,
and loses the others: short episodes would be preferred, and a run could not be repeated. Here one task is drawn for
each dropped group, so that every group that begins is either trained on or dropped.
A larger `training.generation_prompts` asks for Slime's own way.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from slime.rollout import sample_hooks
from slime.rollout.data_source import RolloutDataSourceWithBuffer
from slime.rollout.sglang_rollout import GenerateState

from xp.worker.tasks import TASK_ORDER

POSITION = ("sample_offset", "epoch_id", "sample_group_index", "sample_index")
"""Attributes that Slime saves."""


class AheadTasks(RolloutDataSourceWithBuffer):  # type: ignore[misc]
    """Slime's source, which saves with a step where the next one begins, though train_async.py has begun it already."""

    def __init__(self, args: Any) -> None:
        super().__init__(args)
        self._begun: dict[int | None, dict[str, int]] = {}
        """Position at the beginning of each rollout."""

    def get_samples(self, num_samples: int) -> Any:
        self._begun.setdefault(sample_hooks._current_rollout_id, self._position())
        return super().get_samples(num_samples)

    def save(self, rollout_id: int) -> None:
        position = self._position()
        self.__dict__ |= self._begun.get(rollout_id + 1, position)
        super().save(rollout_id)
        self.__dict__ |= position

    def _position(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in POSITION}


class FreshTasks(AheadTasks):
    """The same in xp's order, which does not end where the view does."""

    def __init__(self, args: Any) -> None:
        super().__init__(args)
        order = json.loads(Path(args.prompt_data).with_name(TASK_ORDER).read_text())
        self.dataset.samples = [self.dataset.samples[number] for number in order]

    def get_samples(self, num_samples: int) -> Any:
        """The next tasks: a round, if it is larger than a step, else as many as the step lacks."""
        if num_samples == self.args.rollout_batch_size:
            num_samples -= GenerateState(self.args).remaining_batch_size
        return super().get_samples(num_samples)
