"""Slime's source of tasks with a curriculum, which draws a step's tasks when the step asks for them."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

from slime.rollout import sample_hooks

from xp.backends.slime.worker.checkpoints import curriculum_file
from xp.backends.slime.worker.fresh_tasks import AheadTasks
from xp.backends.slime.worker.rollout_process import worker_of
from xp.lib.atomic import write_atomically
from xp.tasks.curriculum import Curriculum, row_of_view


class DrawnTasks(AheadTasks):
    """The same source over a view of all tasks, of which each step's are drawn."""

    def __init__(self, args: Any) -> None:
        super().__init__(args)
        self._samples = {sample.metadata["task_id"]: sample for sample in self.dataset.samples}
        self._state: Path | None = None
        """File of the checkpoint from which the training resumes."""

    @cached_property
    def _curriculum(self) -> Curriculum:
        """The worker's curriculum, made with the first step, when the worker is there."""
        worker = worker_of(self.args)
        spec = worker.config.spec
        rows = [row_of_view(sample.metadata, spec) for sample in self._samples.values()]
        curriculum = Curriculum(spec, rows, worker.config.num_steps)
        if self._state is not None:
            curriculum.restore(self._state)
        worker.curriculum = curriculum
        return curriculum

    def get_samples(self, num_samples: int) -> Any:
        step = sample_hooks._current_rollout_id or 0
        self._curriculum.begin(step)
        tasks = self._curriculum.tasks(step)
        self.dataset.samples = [self._samples[task.task_id] for task in tasks]
        self.sample_offset = 0
        return super().get_samples(num_samples)

    def save(self, rollout_id: int) -> None:
        """Saves the curriculum before the position, with which a checkpoint is complete."""
        file = curriculum_file(Path(self.args.save), rollout_id)
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, self._curriculum.state(rollout_id + 1).to_json())
        super().save(rollout_id)

    def load(self, rollout_id: int | None = None) -> None:
        super().load(rollout_id)
        # Slime asks for step -1 where there is no checkpoint.
        if rollout_id is not None and rollout_id >= 0:
            self._state = curriculum_file(Path(self.args.load), rollout_id)
