"""Order of the training tasks, the same on every backend."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from xp.lib.nested import grouped
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
