"""The task set for Slime: JSON Lines whose `metadata` is an object (Slime's training crashes on a string).

Slime only prints a message for an unreadable line, and skips a too long prompt only if it is a string; xp checks both
before it writes this file.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from xp.lib.atomic import replacing
from xp.tasks.evaluated import Rounds
from xp.tasks.row import TaskRow

INPUT_KEY, METADATA_KEY, TOOL_KEY = "input", "metadata", "tools"
"""Values of --input-key, --metadata-key and --tool-key."""


def slime_line(row: TaskRow) -> dict[str, Any]:
    """One line of Slime's prompt data."""
    return {
        INPUT_KEY: [dict(message) for message in row.messages],
        TOOL_KEY: json.loads(row.tools),
        METADATA_KEY: {"task_id": row.task_id, "env": row.env, "split": row.split, "index": row.index},
    }


def write_view(rows: Iterable[TaskRow], path: Path) -> int:
    """Writes the JSONL file atomically; returns the number of lines."""
    return _write(map(slime_line, rows), path)


def write_episodes(rows: Sequence[TaskRow], rounds: Rounds, path: Path) -> int:
    """Writes a view with every task once per round; `sample` in the metadata is the index of the task's episode."""
    lines = (
        {**slime_line(row), METADATA_KEY: {**slime_line(row)[METADATA_KEY], "sample": number}}
        for number in range(rounds.samples_per_task)
        for row in rounds.tasks(rows)
    )
    return _write(lines, path)


def _write(lines: Iterable[dict[str, Any]], path: Path) -> int:
    count = 0
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        for line in lines:
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
            count += 1
    return count
