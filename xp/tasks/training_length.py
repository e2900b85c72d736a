"""Length of a training: rollout steps, or epochs, which become steps when the number of tasks is known."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from xp.episode.metrics_file import last_step
from xp.errors import ExitCode, XpError
from xp.lib.atomic import write_atomically
from xp.lib.text import counted

FILE = "length.json"
"""File beside a train stage's configuration with the computed length, for the run's record."""


@dataclass(frozen=True)
class Length:
    """Length of a training, the same on every backend."""

    num_steps: int | None
    """Rollout steps; None: not known yet."""
    epochs: int | None = None
    """Passes over the training tasks; None: the steps are given."""

    @property
    def steps(self) -> int:
        """Rollout steps; must be called only if they are given or computed."""
        assert self.num_steps is not None
        return self.num_steps

    def over(self, num_tasks: int, prompts_per_step: int) -> Length:
        """Computes the steps: an epoch has as many whole steps as its tasks fill; remaining tasks are dropped.

        Args:
            num_tasks: training tasks of the set, including those with a too long prompt.
            prompts_per_step: tasks of a rollout step.

        Raises:
            XpError: (TASKS) there are fewer tasks than one step needs.
        """
        if self.epochs is None:
            return self
        if num_tasks < prompts_per_step:
            raise XpError(f"training.epochs: {too_few(num_tasks, prompts_per_step)}", ExitCode.TASKS)
        return Length(self.epochs * (num_tasks // prompts_per_step), self.epochs)


def too_few(num_tasks: int, prompts_per_step: int) -> str:
    """Message about too few tasks for an epoch, with remedies."""
    return (
        f"a step takes {prompts_per_step} tasks and there are {num_tasks}; set"
        f" training.prompts_per_step={num_tasks} at most, or training.num_steps in the place of training.epochs"
    )


def settle(length: Length, num_tasks: int, prompts_per_step: int, stage: Path) -> Length:
    """Computes the steps, prints them, and writes them for the run's record.

    Args:
        length: length in the spec.
        num_tasks: training tasks of the set.
        prompts_per_step: tasks of a rollout step.
        stage: directory of the train stage.

    Raises:
        XpError: (TASKS) there are fewer tasks than one step needs; (CONFIG) a resumed run has made more steps already.
    """
    fixed = length.over(num_tasks, prompts_per_step)
    if fixed.epochs is not None:
        made = last_step(stage.parent.parent / "metrics.jsonl") or 0
        if made > fixed.steps:
            raise XpError(f"training.epochs={fixed.epochs}: these are {fixed.steps} steps, and {made} are made already")
        size = f"{counted(fixed.epochs, 'epoch')} of {counted(num_tasks, 'task')}"
        print(f"{size}, {prompts_per_step} a step: {counted(fixed.steps, 'step')}", flush=True)
    content = {"epochs": fixed.epochs, "num_steps": fixed.steps, "num_tasks": num_tasks}
    write_atomically(stage / FILE, json.dumps(content, indent=2) + "\n")
    return fixed
