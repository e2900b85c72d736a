"""One task as every backend sees it, and the Parquet file that holds them; no column holds a task's own spec."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xp.envs.base import Message
from xp.tasks.config import Purpose

ROWS_PER_GROUP = 1024


@dataclass(frozen=True)
class TaskRow:
    """A task with its opening messages."""

    task_id: str
    """`member/split/index`"""
    env: str
    """Name of the member of the mixture."""
    purpose: Purpose
    split: str
    index: int
    task_hash: str
    """sha256 of the environment's own description of the task."""
    messages: tuple[Message, ...]
    tools: str
    """JSON list of function schemas, as chat templates take them."""
    weight: float
    """The environment's share in the mixture, relative to the other members."""


def schema() -> Any:
    import pyarrow as pa

    message = pa.struct([pa.field("role", pa.string(), False), pa.field("content", pa.string(), False)])
    text = ("task_id", "env", "purpose", "split", "index", "task_hash", "messages", "tools", "weight")
    kinds = {"index": pa.int64(), "weight": pa.float64(), "messages": pa.list_(pa.field("item", message, False))}
    return pa.schema([pa.field(name, kinds.get(name, pa.string()), False) for name in text])


_canonical = json.JSONEncoder(sort_keys=True).encode


def write_rows(path: Path, rows: Iterable[TaskRow]) -> str:
    """Write the rows in bounded memory, the same bytes for the same rows; gives back the digest of their content."""
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
    """Every so many of the rows of a `tasks.parquet`, the first one first; the others are not made into Python."""
    import pyarrow.parquet as pq

    first = 0
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=ROWS_PER_GROUP):
            wanted = list(range(first, batch.num_rows, every))
            first = (first - batch.num_rows) % every
            yield from map(_row, batch.take(wanted).to_pylist() if wanted else [])


def read_rows(path: Path, purpose: Purpose | str | None = None) -> Iterator[TaskRow]:
    """The rows of a `tasks.parquet`, streamed; only those of one purpose if it is given."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=ROWS_PER_GROUP):
            for value in batch.to_pylist():
                if purpose is None or value["purpose"] == purpose:
                    yield _row(value)


def _row(value: dict[str, Any]) -> TaskRow:
    return TaskRow(**value | {"purpose": Purpose(value["purpose"]), "messages": tuple(value["messages"])})
