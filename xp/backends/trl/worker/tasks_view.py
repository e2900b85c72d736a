"""The task set for TRL: a list of prompts whose messages have the task's id, in xp's order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xp.tasks.row import TaskRow

TASK_ID = "task_id"
"""Extra key of a prompt's first message, which TRL passes unchanged to the rollout function, once per episode."""


SLOT = "xp_slot"
"""Extra key with the number of the prompt in the order of the whole training."""


def trl_rows(order: Sequence[TaskRow]) -> list[dict[str, Any]]:
    """Rows of the `datasets.Dataset`, one per prompt; the policy's prompt is made of xp's own row, with all keys."""
    return [
        {
            "prompt": [
                {"role": message["role"], "content": message["content"], TASK_ID: row.task_id, SLOT: slot}
                for message in row.messages
            ]
        }
        for slot, row in enumerate(order)
    ]
