"""Rows of a task set."""

from __future__ import annotations

import json
from typing import Any

from xp.envs.base import Message
from xp.tasks.config import Purpose
from xp.tasks.row import TaskRow


def row(tools: list[Any], prompt: str = "Say 'hi'.") -> TaskRow:
    message = Message(role="user", content=prompt)
    return TaskRow(
        "e/test/0", "e", Purpose.HELD_OUT, "test", 0, "hash", (message,), json.dumps(tools), 1.0
    )
