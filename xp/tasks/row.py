"""Row of a task, the same for every backend, and its Parquet file; no column has the environment's own spec."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from xp.envs.base import Message
from xp.tasks.config import Purpose
from xp.valid_text import valid_value

ROWS_PER_GROUP = 1024


@dataclass(frozen=True)
class TaskRow:
    """A task with its opening messages."""

    task_id: str
    """Id of the task: `member/split/index`."""
    env: str
    """Name of its member of the mixture."""
    purpose: Purpose
    split: str
    index: int
    task_hash: str
    """sha256 of the environment's description of the task."""
    messages: tuple[Message, ...]
    tools: str
    """JSON list of function schemas, in the format of chat templates."""
    weight: float
    """The member's share of the mixture, relative to the other members."""


def schema() -> Any:
    import pyarrow as pa

    message = pa.struct([pa.field("role", pa.string(), False), pa.field("content", pa.string(), False)])
    text = ("task_id", "env", "purpose", "split", "index", "task_hash", "messages", "tools", "weight")
    kinds = {"index": pa.int64(), "weight": pa.float64(), "messages": pa.list_(pa.field("item", message, False))}
    return pa.schema([pa.field(name, kinds.get(name, pa.string()), False) for name in text])


_canonical = json.JSONEncoder(sort_keys=True).encode


def write_rows(path: Path, rows: Iterable[TaskRow]) -> str:
    """Writes the rows in bounded memory; equal rows give equal bytes. Returns the digest of their content."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    content = hashlib.sha256()
    columns = schema()
    with pq.ParquetWriter(path, columns, compression="zstd") as writer:
        for group in _groups(rows):
            values = [vars(row) for row in group]
            for value in values:
                content.update(_canonical(value).encode() + b"\n")
            writer.write_table(pa.Table.from_pylist(values, schema=columns))
    return content.hexdigest()


def _groups(rows: Iterable[TaskRow]) -> Iterator[list[TaskRow]]:
    group: list[TaskRow] = []
    for row in rows:
        group.append(row)
        if len(group) == ROWS_PER_GROUP:
            yield group
            group = []
    if group:
        yield group


def some_rows(path: Path, every: int) -> Iterator[TaskRow]:
    """Every n-th row of a `tasks.parquet`, beginning with the first; other rows are not converted to Python."""
    import pyarrow.parquet as pq

    first = 0
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=ROWS_PER_GROUP):
            wanted = list(range(first, batch.num_rows, every))
            first = (first - batch.num_rows) % every
            yield from map(_row, batch.take(wanted).to_pylist() if wanted else [])


def read_rows(path: Path, purpose: Purpose | str | None = None) -> Iterator[TaskRow]:
    """Streams the rows of a `tasks.parquet`; with a purpose, only its rows."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=ROWS_PER_GROUP):
            for value in batch.to_pylist():
                if purpose is None or value["purpose"] == purpose:
                    yield _row(value)


def _row(value: dict[str, Any]) -> TaskRow:
    purpose, messages, tools = Purpose(value["purpose"]), tuple(value["messages"]), _tools(value["tools"])
    return TaskRow(**value | {"purpose": purpose, "messages": messages, "tools": tools})


@lru_cache(maxsize=256)
def _tools(text: str) -> str:
    """The tools of a row; an older xp kept lone surrogates in them."""
    if "\\ud" not in text:
        return text
    try:
        stored = json.loads(text)
    except ValueError:
        return text
    valid = valid_value(stored)
    return text if valid == stored else json.dumps(valid, sort_keys=True)
