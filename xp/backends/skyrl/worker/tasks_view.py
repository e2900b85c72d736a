"""The task set for SkyRL's PromptDataset: Parquet whose `prompt` is a list of messages, not a JSON string.

SkyRL silently drops rows by length (`trainer.max_prompt_length`), so the limit is applied before this file is written
and SkyRL's limit is very large. Columns other than `prompt` and `env_class` are the environment's extras; `messages` is
the whole prompt as JSON, since Parquet would give every call the arguments of all calls.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from xp.lib.atomic import replacing
from xp.tasks.row import TaskRow

ENV_CLASS = "xp"
"""Name of xp's environment in SkyRL-Gym."""


def skyrl_row(row: TaskRow) -> dict[str, Any]:
    """One row of SkyRL's dataset."""
    return {
        "prompt": [{"role": message["role"], "content": message["content"]} for message in row.messages],
        "env_class": ENV_CLASS,
        "data_source": row.env,
        "task_id": row.task_id,
        "env": row.env,
        "split": row.split,
        "index": row.index,
        "tools": row.tools,
        "messages": json.dumps(row.messages),
    }


def write_view(rows: Iterable[TaskRow], path: Path) -> int:
    """Writes the Parquet file atomically; returns the number of rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.Table.from_pylist([skyrl_row(row) for row in rows])
    with replacing(path) as file:
        pq.write_table(table, file)
    return int(table.num_rows)
