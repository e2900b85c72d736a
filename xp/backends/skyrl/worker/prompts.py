"""What SkyRL reads prompts from: a data set that a curriculum draws, and a tokenizer for one that counts no tokens."""

from __future__ import annotations

from typing import Any

from xp.backends.skyrl.worker.config import SkyRLTrainStageConfig
from xp.tasks.curriculum import Curriculum, row_of_view


class DrawnPrompts:
    """SkyRL's data set with a curriculum: the positions of all rollout steps, in order.

    The loader, which has no processes of its own, reads none ahead: it asks for a step's prompts when the step begins.

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
        self._num_positions = config.num_steps * self._step_size
        self.curriculum = Curriculum(spec, rows, config.num_steps)

    def __getitem__(self, item: int) -> tuple[Any, Any, dict[str, Any], str]:
        """The drawn task of a position; its uid is the position, as a task may be drawn again."""
        step, position = divmod(item, self._step_size)
        self.curriculum.begin(step)
        task = self.curriculum.tasks(step)[position]
        messages, env_class, extras, _ = self._view[self._numbers[task.task_id]]
        return messages, env_class, extras, str(item)

    def __len__(self) -> int:
        return self._num_positions


class UncountedPrompts:
    """In a tokenizer's place for SkyRL's data set, which counts each prompt's tokens by its own rendering, without
    tools, and some chat templates refuse: xp has counted them when the tasks were prepared."""

    def apply_chat_template(self, conversation: Any, **arguments: Any) -> list[int]:
        del conversation, arguments
        return []
