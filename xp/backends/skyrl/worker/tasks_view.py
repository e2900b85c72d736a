"""The task set as SkyRL's PromptDataset reads it: Parquet whose `prompt` is a list of messages, not a string of JSON.

SkyRL drops rows by length without a word (`trainer.max_prompt_length`), so the limit is applied before this file is
written and SkyRL's is rendered wide open. Columns beside `prompt` and `env_class` reach the environment as extras.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from xp.atomic import replacing
from xp.tasks.row import TaskRow

ENV_CLASS = "xp"
"""The name under which xp registers its environment with SkyRL-Gym."""


def skyrl_row(row: TaskRow) -> dict[str, Any]:
    """One row of SkyRL's dataset."""
    return {
        "prompt": [dict(message) for message in row.messages],
        "env_class": ENV_CLASS,
        "data_source": row.env,
        "task_id": row.task_id,
        "env": row.env,
        "split": row.split,
        "index": row.index,
        "tools": row.tools,
    }


def write_view(rows: Iterable[TaskRow], path: Path) -> int:
    """Write the Parquet file, whole or not at all; gives back the number of rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.Table.from_pylist([skyrl_row(row) for row in rows])
    with replacing(path) as file:
        pq.write_table(table, file)
    return int(table.num_rows)
