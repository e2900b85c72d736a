"""Slime's source of tasks under dynamic sampling, whose steps draw any number of tasks.

Slime's own draws a whole batch for a group that it drops, trains on the groups that end first, and loses the others:
short episodes would be preferred, and a run could not be repeated. Here one task is drawn for each dropped group, so
that every group that begins is either trained on or dropped; `training.generation_prompts` asks for Slime's own way.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from slime.rollout.data_source import RolloutDataSourceWithBuffer
from slime.rollout.sglang_rollout import GenerateState

from xp.worker.tasks import TASK_ORDER


class FreshTasks(RolloutDataSourceWithBuffer):  # type: ignore[misc]
    """Slime's source, in xp's order, which does not end where the view does."""

    def __init__(self, args: Any) -> None:
        super().__init__(args)
        order = json.loads(Path(args.prompt_data).with_name(TASK_ORDER).read_text())
        self.dataset.samples = [self.dataset.samples[number] for number in order]

    def get_samples(self, num_samples: int) -> Any:
        """The next tasks: a round, if it is larger than a step, else as many as the step lacks."""
        if num_samples == self.args.rollout_batch_size:
            num_samples -= GenerateState(self.args).remaining_batch_size
        return super().get_samples(num_samples)
