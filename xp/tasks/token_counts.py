"""Lengths of prompts for one model, counted once for each task set and tokenizer.

A set is the same for every model, so the counts are stored beside it, in `<set>.tokens/<tokenizer>.json`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from xp.errors import ExitCode, XpError
from xp.lib.atomic import replacing
from xp.lib.digest import digest_of
from xp.lib.reading import is_count, json_of
from xp.tasks.row import TaskRow

SUFFIX: Final = ".tokens"
FORMAT: Final = 2
"""Version of the file."""


def count_tokens(
    task_set: Path, rows: Sequence[TaskRow], tokenizer: str, count: Callable[[TaskRow], int | None]
) -> Mapping[str, int]:
    """Tokens of prompts by task id, from the file, or counted and stored there.

    Args:
        task_set: directory of the set.
        rows: rows of the set; all purposes share one file.
        tokenizer: digest of the tokenizer (`ChatTokens.digest`).
        count: returns the length of one row's prompt, tools included; None if it is far above its limit: such a task
            is absent from the result and from the file.
    """
    file = place_of(task_set) / f"{tokenizer}.json"
    known = read_counts(file) or {}
    if not known and file.exists() and (fault := fault_of_counts(file)) is not None:
        print(f"the token counts {file} are damaged and are counted again: {fault}", flush=True)
    counted = {row.task_id: count(row) for row in rows if row.task_id not in known}
    fresh = {task_id: number for task_id, number in counted.items() if number is not None}
    if fresh:
        known |= fresh
        keep_counts(file, known)
    return {row.task_id: known[row.task_id] for row in rows if row.task_id in known}


def place_of(task_set: Path) -> Path:
    """Directory of a set's counts, with one file per tokenizer."""
    return task_set.with_name(f"{task_set.name}{SUFFIX}")


def read_counts(file: Path) -> dict[str, int] | None:
    """Task id -> tokens; None if the file is absent or damaged."""
    try:
        return _counts(json_of(file, ExitCode.TASKS))
    except (XpError, ValueError):
        return None


def fault_of_counts(file: Path) -> str | None:
    """The fault of a file of counts; None if it is whole."""
    try:
        _counts(json_of(file, ExitCode.TASKS))
    except (XpError, ValueError) as error:
        return str(error)
    return None


def _counts(stored: object) -> dict[str, int]:
    """The counts in the content of a file; raises ValueError for another content."""
    if not isinstance(stored, dict):
        raise ValueError("it holds no object")
    counts = stored.get("counts")
    if stored.get("format") != FORMAT or not isinstance(counts, dict):
        raise ValueError(f"it is not a file of counts of format {FORMAT}")
    if not all(is_count(number) for number in counts.values()) or stored.get("sha256") != digest_of(counts):
        raise ValueError("its counts do not match their sha256")
    return counts


def keep_counts(file: Path, known: Mapping[str, int]) -> None:
    """Stores the counts; with a read-only store they are counted again each time."""
    try:
        file.parent.mkdir(exist_ok=True)
        with replacing(file) as temporary:
            stored = {"format": FORMAT, "sha256": digest_of(known), "counts": known}
            temporary.write_text(json.dumps(stored, sort_keys=True))
    except OSError as error:
        print(f"token counts are not kept: {file.parent}: {error.strerror}", flush=True)
