"""Row of a task, the same for every backend, and its Parquet file; no column has the environment's own spec."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from itertools import islice
from pathlib import Path
from typing import Any, Final, cast

from xp.envs.base import Message
from xp.errors import ExitCode, XpError
from xp.tasks.config import Purpose

ROWS_PER_GROUP: Final = 1024
MESSAGE_KEYS: Final = ("role", "content", "name", "tool_call_id", "tool_calls", "pictures")
"""Keys of a message, the first two in each; in a table those of JSON_KEYS are JSON text."""
JSON_KEYS: Final = ("tool_calls", "pictures")


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

    message = pa.struct(
        [pa.field(key, pa.string(), key not in MESSAGE_KEYS[:2]) for key in MESSAGE_KEYS]
    )
    kinds = {
        "index": pa.int64(),
        "weight": pa.float64(),
        "messages": pa.list_(pa.field("item", message, False)),
    }
    return pa.schema(
        [
            pa.field(field.name, kinds.get(field.name, pa.string()), False)
            for field in fields(TaskRow)
        ]
    )


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
            stored = [
                value | {"messages": [_stored(message) for message in value["messages"]]}
                for value in values
            ]
            writer.write_table(pa.Table.from_pylist(stored, schema=columns))
    return content.hexdigest()


def _groups(rows: Iterable[TaskRow]) -> Iterator[list[TaskRow]]:
    remaining = iter(rows)
    group = list(islice(remaining, ROWS_PER_GROUP))
    while group:
        yield group
        group = list(islice(remaining, ROWS_PER_GROUP))


def _stored(message: Message) -> dict[str, str]:
    """A message as texts."""
    known = {key: value for key, value in message.items() if value is not None}
    return {
        key: value if isinstance(value, str) else _canonical(value) for key, value in known.items()
    }


def _message(texts: Mapping[str, str | None], shared: dict[str, str]) -> Message:
    """The message that `_stored` made texts of; texts that are in `shared` are its objects."""
    known: dict[str, Any] = {
        key: shared.setdefault(text, text) for key, text in texts.items() if text is not None
    }
    for key in JSON_KEYS:
        if key in known:
            known[key] = json.loads(known[key])
    return cast(Message, known)


def some_rows(path: Path, every: int) -> Iterator[TaskRow]:
    """Every n-th row of a `tasks.parquet`, beginning with the first; other rows are not converted to Python."""
    first = 0
    with _reading(path):
        for batch in _batches(path):
            positions = list(range(first, batch.num_rows, every))
            if positions:
                yield from _rows(batch.take(positions))
            first = (first - batch.num_rows) % every


def read_rows(path: Path, purpose: Purpose | str | None = None) -> Iterator[TaskRow]:
    """Streams the rows of a `tasks.parquet`; with a purpose, only its rows."""
    with _reading(path):
        for batch in _batches(path):
            yield from (row for row in _rows(batch) if purpose is None or row.purpose == purpose)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Converts the faults of a damaged table to XpError(TASKS)."""
    import pyarrow as pa

    try:
        yield
    except (OSError, ValueError, LookupError, pa.ArrowException) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise XpError(
            f"{path} is damaged: {error}\nremove {path.parent} and run `python -m xp prepare` to build it again",
            ExitCode.TASKS,
        ) from error


def _batches(path: Path) -> Iterator[Any]:
    """The table in parts."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        if not file.schema_arrow.equals(schema()):
            raise ValueError("its columns are not those of a task set")
        yield from file.iter_batches(batch_size=ROWS_PER_GROUP)


def _rows(batch: Any) -> Iterator[TaskRow]:
    """The rows of a part; equal texts, such as the tools, are one object."""
    shared: dict[str, str] = {}
    for values in batch.to_pylist():
        tools = values["tools"]
        yield TaskRow(
            **values
            | {
                "purpose": Purpose(values["purpose"]),
                "messages": tuple(_message(texts, shared) for texts in values["messages"]),
                "tools": shared.setdefault(tools, tools),
            }
        )
