"""Rows with tools and a system message."""

from __future__ import annotations

import json

from xp.envs.base import Message
from xp.tasks.config import Purpose
from xp.tasks.row import TaskRow

TOOLS = json.dumps(
    [{"type": "function", "function": {"name": "go", "description": "", "parameters": {}}}]
)


def row(index: int) -> TaskRow:
    messages = (
        Message(role="system", content="be ünïque"),
        Message(role="user", content=f"task {index}\n"),
    )
    return TaskRow(
        f"a/train/{index}", "a", Purpose.TRAIN, "train", index, "hash", messages, TOOLS, 1.0
    )
