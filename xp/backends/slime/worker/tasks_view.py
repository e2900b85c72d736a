"""The task set as Slime reads it: JSON Lines whose `metadata` is an object (its training path crashes on a string).

Slime skips a line that it cannot read with a `print`, and an over-long prompt only if it is a string: both are seen to
before this file is written.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from xp.atomic import replacing
from xp.tasks.rounds import Rounds
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
    """Write the JSONL file, whole or not at all; gives back the number of lines."""
    return _write(map(slime_line, rows), path)


def write_episodes(rows: Sequence[TaskRow], rounds: Rounds, path: Path) -> int:
    """As `write_view`, with every task once a round; the metadata's `sample` says which of its episodes a line is."""
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
