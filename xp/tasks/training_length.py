"""Length of a training: rollout steps, or epochs, which become steps when the number of tasks is known."""

from __future__ import annotations

from pathlib import Path

from xp.episode.metrics_file import last_step
from xp.errors import ExitCode, XpError
from xp.lib.atomic import write_json
from xp.lib.text import counted
from xp.spec import Training

FILE = "length.json"
"""File beside a train stage's configuration with the computed length, for the run's record."""


def steps_of(training: Training, num_tasks: int) -> int:
    """Rollout steps: an epoch has as many whole steps as its tasks fill; remaining tasks are dropped.

    Args:
        training: the spec's.
        num_tasks: training tasks of the set, including those with a too long prompt.

    Raises:
        XpError: (TASKS) there are fewer tasks than one step needs.
    """
    if training.epochs is None:
        return training.num_steps or 0
    if num_tasks < training.prompts_per_step:
        raise XpError(
            f"training.epochs: {too_few(num_tasks, training.prompts_per_step)}", ExitCode.TASKS
        )
    return training.epochs * (num_tasks // training.prompts_per_step)


def too_few(num_tasks: int, prompts_per_step: int) -> str:
    """Message about too few tasks for an epoch, with remedies."""
    return (
        f"a step takes {prompts_per_step} tasks and there are {num_tasks}; set"
        f" training.prompts_per_step={num_tasks} at most, or training.num_steps instead of training.epochs"
    )


def settle(training: Training, num_tasks: int, stage: Path) -> int:
    """Computes the rollout steps, prints them, and writes them for the run's record.

    Args:
        training: the spec's.
        num_tasks: training tasks of the set.
        stage: directory of the train stage.

    Raises:
        XpError: (TASKS) there are fewer tasks than one step needs; (CONFIG) a resumed run has made more steps already.
    """
    steps = steps_of(training, num_tasks)
    epochs = training.epochs
    if epochs is not None:
        trained_steps = last_step(stage.parent.parent / "metrics.jsonl") or 0
        if trained_steps > steps:
            raise XpError(
                f"training.epochs={epochs}: these are {steps} steps, and {trained_steps} are made already"
            )
        size = f"{counted(epochs, 'epoch')} of {counted(num_tasks, 'task')}"
        print(f"{size}, {training.prompts_per_step} a step: {counted(steps, 'step')}", flush=True)
    content = {"epochs": epochs, "num_steps": steps, "num_tasks": num_tasks}
    write_json(stage / FILE, content)
    return steps
