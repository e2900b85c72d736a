"""Facts about an evaluation's tasks: the rule of the held-out tasks, and the share that is trained on."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from xp.episode.metrics import EpisodeFacts, episode_metrics
from xp.spec import Evaluation
from xp.tasks.manifest import read_manifest
from xp.tasks.row import TaskRow

TRAINED_ON = "tasks/trained_on"
"""Metric of the share of held-out tasks that are trained on as well; absent if there are none."""


def evaluation_metrics(
    name: str, played: Sequence[EpisodeFacts], pass_threshold: float, tasks: Path
) -> dict[str, float]:
    """The metrics of one evaluation under its name.

    Args:
        name: `before`, `after` or `during`.
        played: all its episodes.
        pass_threshold: smallest reward that is a pass.
        tasks: directory of the task set.
    """
    metrics = episode_metrics(played, 1, pass_threshold)
    records = read_manifest(tasks).held_out.values()
    num_trained_on = sum(record.num_trained_on for record in records)
    if num_trained_on:
        metrics[TRAINED_ON] = num_trained_on / sum(record.num_held_out for record in records)
    return {f"evaluation/{name}/{key}": value for key, value in metrics.items()}


def evaluated_tasks(evaluation: Evaluation, rows: Sequence[TaskRow]) -> list[TaskRow]:
    """The tasks that an evaluation plays, in the order of `rows`.

    They are chosen by a hash of their names: the choice is the same in every run, and a smaller choice is part of a
    larger one.
    """
    if evaluation.num_tasks is None or evaluation.num_tasks >= len(rows):
        return list(rows)
    ranks = {row.task_id: hashlib.sha256(row.task_id.encode()).digest() for row in rows}
    chosen = set(sorted(ranks, key=ranks.__getitem__)[: evaluation.num_tasks])
    return [row for row in rows if row.task_id in chosen]


def evaluated_episodes(evaluation: Evaluation, rows: Sequence[TaskRow]) -> list[TaskRow]:
    """One row per episode: every task once, then every task again, until each has its number of samples."""
    return evaluated_tasks(evaluation, rows) * evaluation.samples_per_task
