"""SkyRL's dataset with a curriculum: the loader asks for a step's prompts when the step begins, and gets drawn ones."""

from __future__ import annotations

from typing import Any

from xp.backends.skyrl.worker.config import SkyRLTrainStageConfig
from xp.tasks.curriculum import Curriculum, row_of_view


class DrawnPrompts:
    """The places of all rollout steps, in order; the loader, which has no processes of its own, reads none ahead.

    Args:
        view: SkyRL's PromptDataset of all tasks, each once.
        config: of the stage.
    """

    def __init__(self, view: Any, config: SkyRLTrainStageConfig) -> None:
        spec = config.spec
        columns = ("task_id", "env", "split", "index")
        rows = [row_of_view(row, spec) for row in view.dataframe.select_columns(columns)]
        self._view = view
        self.collate_fn = view.collate_fn
        self._numbers = {row.task_id: number for number, row in enumerate(rows)}
        self._step_size = spec.training.prompts_per_step
        self._num_places = config.num_steps * self._step_size
        self.curriculum = Curriculum(spec, rows, config.num_steps)

    def __getitem__(self, item: int) -> tuple[Any, Any, dict[str, Any], str]:
        """The drawn task of a place; its uid is the place, as a task may be drawn again."""
        step, place = divmod(item, self._step_size)
        self.curriculum.begin(step)
        task = self.curriculum.tasks(step)[place]
        messages, env_class, extras, _ = self._view[self._numbers[task.task_id]]
        return messages, env_class, extras, str(item)

    def __len__(self) -> int:
        return self._num_places
