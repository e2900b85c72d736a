"""Order of the training tasks, and the tasks that an evaluation plays: the same on every backend."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Sequence

from xp.lib.nested import grouped
from xp.spec import Evaluation
from xp.tasks.row import TaskRow


def schedule(
    rows: Sequence[TaskRow], num_prompts: int, *, seed: int, shuffle: bool
) -> list[TaskRow]:
    """The first `num_prompts` tasks of an endless training order.

    Members of a mixture alternate by weight (the member furthest below its share is next); within a member, every task
    occurs once per epoch, and each epoch has a new order.

    Args:
        rows: tasks of all members; all rows of one member have its weight.
        num_prompts: rollout steps x prompts per step.
        seed: seed of the epochs' orders.
        shuffle: False keeps the order of `rows` in every epoch.
    """
    members = grouped((row.env, row) for row in rows)
    total = sum(tasks[0].weight for tasks in members.values())
    shares = {name: tasks[0].weight / total for name, tasks in members.items()}
    streams = {name: _epochs(tasks, f"{seed}/{name}", shuffle) for name, tasks in members.items()}
    counts = dict.fromkeys(members, 0)
    order = []
    for position in range(1, num_prompts + 1):
        behind = {name: shares[name] * position - counts[name] for name in members}
        name = max(behind, key=lambda member: behind[member])
        counts[name] += 1
        order.append(next(streams[name]))
    return order


def _epochs(rows: Sequence[TaskRow], seed: str, shuffle: bool) -> Iterator[TaskRow]:
    generator = random.Random(seed)
    while True:
        order = list(rows)
        if shuffle:
            generator.shuffle(order)
        yield from order


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
