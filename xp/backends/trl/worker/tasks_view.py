"""The task set as TRL takes it: a list of prompts whose messages carry the task's id, in xp's own order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xp.tasks.row import TaskRow

TASK_ID = "task_id"
"""Extra key of a prompt's first message: TRL hands it to the rollout function untouched, once per episode."""


SLOT = "xp_slot"
"""Likewise, the number of the prompt in the order of the whole training."""


def trl_rows(order: Sequence[TaskRow]) -> list[dict[str, Any]]:
    """Rows of the `datasets.Dataset`, one a prompt."""
    return [
        {"prompt": [{**message, TASK_ID: row.task_id, SLOT: slot} for message in row.messages]}
        for slot, row in enumerate(order)
    ]
