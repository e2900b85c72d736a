"""Reads tasks as rows, from a file beside a module or from a function; converts them to prompts."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Final

from xp.envs.base import Message, ProtocolError
from xp.envs.messages import chat_messages
from xp.errors import ExitCode, XpError
from xp.load import load_object

Row = Mapping[str, Any]
Rows = Mapping[str, Sequence[Row]]
"""Split -> rows."""

PROMPT: Final = "prompt"
SPLIT: Final = "split"
DEFAULT_SPLIT: Final = "train"


def load_rows(name: str) -> Rows:
    """The rows of `package:file.jsonl`, `package:file.parquet` or `package.module:function`.

    A row of a file belongs to the split in its field `split`, else to `train`; a function returns the mapping from
    split to rows.

    Raises:
        XpError: the name does not exist, or a row has no prompt.
    """
    module, _, what = name.partition(":")
    if "." in what:
        return checked(_by_split(_read(_resource(module, what), name)), name)
    return checked(attribute(name)(), name)


def attribute(name: str) -> Any:
    """The object that `module:name` names. Raises XpError if there is none."""
    try:
        return load_object(name)
    except (ImportError, AttributeError) as error:
        raise XpError(f"{name} cannot be loaded by {sys.executable}: {error}", ExitCode.CONFIG) from error


def checked(rows: Any, name: str) -> Rows:
    """Returns the rows if each has a prompt; raises XpError otherwise."""
    if not isinstance(rows, Mapping) or not all(isinstance(split, str) for split in rows):
        raise XpError(f"rows {name}: not a mapping from the name of a split to its rows", ExitCode.CONFIG)
    for split, members in rows.items():
        for number, row in enumerate(members):
            if fault := _prompt_fault(row):
                raise XpError(
                    f"rows {name}: row {number} of split {split} has no {PROMPT} that is a text or a list of"
                    f" {{role, content}}: {fault}",
                    ExitCode.CONFIG,
                )
    return rows


def messages_of(row: Row) -> list[Message]:
    """The row's prompt as chat messages, a text as one of the user's; raises ProtocolError as `chat_messages` does."""
    prompt = row[PROMPT]
    return [Message(role="user", content=prompt)] if isinstance(prompt, str) else chat_messages(prompt)


def _prompt_fault(row: Any) -> str:
    """The fault of a row's prompt; empty if it has none."""
    if not isinstance(row, Mapping) or not row.get(PROMPT):
        return f"got {row!r:.80}"
    try:
        return "" if messages_of(row) else "it is empty"
    except ProtocolError as error:
        return str(error)


def _resource(module: str, file: str) -> Traversable:
    try:
        found = files(module) / file
    except ImportError as error:
        raise XpError(f"rows {module}:{file}: {error}", ExitCode.CONFIG) from error
    if not found.is_file():
        raise XpError(f"rows {module}:{file}: there is no {file} in {found}", ExitCode.CONFIG)
    return found


def _read(file: Traversable, name: str) -> list[Any]:
    kind = file.name.rpartition(".")[2]
    try:
        return list(_READERS[kind](file))
    except ValueError as error:
        raise XpError(f"rows {name}: {error}", ExitCode.CONFIG) from error


def _jsonl(file: Traversable) -> Iterator[Any]:
    for number, line in enumerate(file.read_text(encoding="utf-8").split("\n"), start=1):
        if line.strip():
            try:
                yield json.loads(line)
            except ValueError as error:
                raise ValueError(f"line {number} is not JSON: {error}") from None


def _parquet(file: Traversable) -> Iterator[Any]:
    import pyarrow.parquet as pq

    assert isinstance(file, Path)
    yield from pq.read_table(file).to_pylist()


_READERS: Final[Mapping[str, Callable[[Traversable], Iterator[Any]]]] = {"jsonl": _jsonl, "parquet": _parquet}


def _by_split(rows: Sequence[Any]) -> Rows:
    splits: dict[str, list[Any]] = {}
    for row in rows:
        split = row.get(SPLIT, DEFAULT_SPLIT) if isinstance(row, Mapping) else DEFAULT_SPLIT
        splits.setdefault(split, []).append(row)
    return splits
