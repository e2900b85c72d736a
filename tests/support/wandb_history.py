"""The rows in the file of an offline W&B run, whose package has no reader of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BLOCK = 32_768
HEADER = 7
"""Bytes before the first record of a file, and before each part of a record: checksum, length and kind."""


def rows(file: Path) -> list[dict[str, Any]]:
    """Each `log` of the run, in order: name -> value."""
    from wandb.proto.wandb_internal_pb2 import Record

    logged = []
    for data in _records(file.read_bytes()):
        record = Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            logged.append(
                {
                    item.key or ".".join(item.nested_key): json.loads(item.value_json)
                    for item in items
                }
            )
    return logged


def _records(data: bytes) -> Iterator[bytes]:
    """LevelDB's log format: records in parts that no block of 32 KiB cuts."""
    place = HEADER
    record = b""
    while place + HEADER <= len(data):
        if BLOCK - place % BLOCK < HEADER:
            place += BLOCK - place % BLOCK
            continue
        length = int.from_bytes(data[place + 4 : place + 6], "little")
        kind = data[place + 6]
        record += data[place + HEADER : place + HEADER + length]
        place += HEADER + length
        if kind in (1, 4):  # a whole record, or its last part
            yield record
            record = b""
