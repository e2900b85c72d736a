"""How long each prompt is for one model: counted once for a task set and a tokenizer, kept beside the set.

The set is the same for every model, so the counts are no part of it: they lie in `<set>.tokens/<tokenizer>.json`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from xp.atomic import replacing
from xp.tasks.row import TaskRow


def count_tokens(
    task_set: Path, rows: Sequence[TaskRow], tokenizer: str, count: Callable[[TaskRow], int]
) -> Mapping[str, int]:
    """Tokens of every prompt by task id, from the file where it has them all, else counted and kept.

    Args:
        task_set: directory of the set.
        rows: of the set; several purposes share one file.
        tokenizer: digest of the tokenizer (`ChatTokens.digest`).
        count: the length of one row's prompt, tools included.
    """
    file = task_set.with_name(f"{task_set.name}.tokens") / f"{tokenizer}.json"
    known: dict[str, int] = {}
    with suppress(FileNotFoundError, ValueError):
        known = json.loads(file.read_text())
    fresh = {row.task_id: count(row) for row in rows if row.task_id not in known}
    if fresh:
        known |= fresh
        file.parent.mkdir(exist_ok=True)
        with replacing(file) as temporary:
            temporary.write_text(json.dumps(known, sort_keys=True))
    return {row.task_id: known[row.task_id] for row in rows}
