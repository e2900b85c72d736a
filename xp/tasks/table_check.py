"""Checks a `tasks.parquet` before it is read: a few kilobytes of a hostile file could fill the memory.

A file states the size of its content in the footer and in the header of each page, and a reader allocates what a page
states. The pages are therefore read here, without their content, and held against what `xp.tasks.row` writes.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

ROWS_PER_GROUP: Final = 1024
MAX_ROW_CHARACTERS: Final = 40 * 1024 * 1024
"""Largest number of characters of a task's texts: a server's prompt and tools have at most 16 MB each."""
GROUP_CHARACTERS: Final = 16 * 1024 * 1024
"""Number of characters from which a row group is closed."""
MAX_GROUP_BYTES: Final = 256 * 1024 * 1024
"""Largest size of a row group's pages. A character has at most four bytes."""
MAX_VALUES: Final = 1024 * ROWS_PER_GROUP
"""Largest number of values of a column in a row group, with those of its dictionary; a task has several messages."""
_MAGIC: Final = b"PAR1"
_GROUPS, _CHUNKS, _NUM_ROWS, _COLUMN = 4, 1, 3, 3
"""Numbers of fields in Parquet's definition: row groups of the footer, columns and rows of a group, a column's data."""
_PACKED, _DATA, _DICTIONARY = 7, 9, 11
"""Numbers of fields of a column's data: size in the file, places of the first page with values and the dictionary."""
_PAGES: Final = {0: 5, 2: 7}
"""Kind of a page -> number of its own header: pages with values, and dictionaries."""
_ENCODINGS: Final = frozenset((0, 2, 3, 8))
"""PLAIN, PLAIN_DICTIONARY, RLE, RLE_DICTIONARY; a value of another encoding can be larger than its page."""
_MAX_DEPTH: Final = 8


def check_table(path: Path) -> None:
    """Raises ValueError if a table is larger, once unpacked, than a table that xp writes."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
            _check_groups(data)
        except (IndexError, KeyError, TypeError):
            raise ValueError("its footer or the header of a page cannot be read") from None


def _check_groups(data: mmap.mmap) -> None:
    footer_at = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    if data[-4:] != _MAGIC or footer_at < 0:
        raise ValueError("it has no footer")
    footer, _ = _struct(data, footer_at)
    num_packed = 0
    for number, group in enumerate(footer[_GROUPS]):
        if group[_NUM_ROWS] > ROWS_PER_GROUP:
            raise ValueError(f"row group {number} has {group[_NUM_ROWS]} rows; expected at most {ROWS_PER_GROUP}")
        columns = [chunk[_COLUMN] for chunk in group[_CHUNKS]]
        num_bytes = sum(_check_column(data, column) for column in columns)
        if num_bytes > MAX_GROUP_BYTES:
            raise ValueError(f"row group {number} has {num_bytes} bytes; expected at most {MAX_GROUP_BYTES}")
        num_packed += sum(column[_PACKED] for column in columns)
    if num_packed > len(data):
        raise ValueError("its row groups share pages")


def _check_column(data: mmap.mmap, column: Mapping[int, Any]) -> int:
    """Number of bytes of a column's pages in a row group, as their headers state it."""
    position = min(column[_DATA], column.get(_DICTIONARY) or column[_DATA])
    end = position + column[_PACKED]
    if not 0 <= position <= end <= len(data):
        raise ValueError("a column lies outside the file")
    num_bytes = num_values = 0
    while position < end:
        header, position = _struct(data, position)
        kind, unpacked, packed = header[1], header[2], header[3]
        if kind not in _PAGES:
            raise ValueError("a page is of a kind that xp does not write")
        page = header[_PAGES[kind]]
        if page[2] not in _ENCODINGS or min(unpacked, packed, page[1]) < 0:
            raise ValueError("a page is encoded as xp does not encode it")
        num_bytes += unpacked
        num_values += page[1]
        position += packed
    if num_values > MAX_VALUES:
        raise ValueError(f"a column of a row group has {num_values} values; expected at most {MAX_VALUES}")
    return num_bytes


def _struct(data: mmap.mmap, at: int, depth: int = 0) -> tuple[dict[int, Any], int]:
    """Fields of a struct in Thrift's compact protocol by their numbers, and the place behind it; texts are passed
    over."""
    if depth > _MAX_DEPTH:
        raise ValueError("its footer is nested too deeply")
    fields: dict[int, Any] = {}
    number = 0
    while (head := data[at]) != 0:
        at += 1
        if head >> 4:
            number += head >> 4
        else:
            number, at = _integer(data, at)
        kind = head & 15
        if kind in (1, 2):  # booleans, which have no value of their own
            continue
        fields[number], at = _value(data, at, kind, depth)
    return fields, at + 1


def _value(data: mmap.mmap, at: int, kind: int, depth: int) -> tuple[Any, int]:
    if kind in (4, 5, 6):
        return _integer(data, at)
    if kind == 8:  # a text
        length, at = _unsigned(data, at)
        return None, at + length
    if kind == 9:
        return _list(data, at, depth)
    if kind == 12:
        return _struct(data, at, depth + 1)
    if kind in (1, 2, 3, 7):  # a boolean of a list, a byte, a double
        return None, at + (8 if kind == 7 else 1)
    raise ValueError("it has a field that xp does not write")


def _list(data: mmap.mmap, at: int, depth: int) -> tuple[list[Any], int]:
    length, kind = data[at] >> 4, data[at] & 15
    at += 1
    if length == 15:
        length, at = _unsigned(data, at)
    values = []
    for _ in range(length):
        value, at = _value(data, at, kind, depth)
        values.append(value)
    return values, at


def _integer(data: mmap.mmap, at: int) -> tuple[int, int]:
    value, at = _unsigned(data, at)
    return (value >> 1) ^ -(value & 1), at


def _unsigned(data: mmap.mmap, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        value |= (data[at] & 127) << shift
        at += 1
        if data[at - 1] < 128:
            return value, at
    raise ValueError("a number of its footer is too long")
