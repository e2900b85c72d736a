"""Lists, verifies, shows and prunes the sets of a store."""

from __future__ import annotations

import re
import shutil
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

from xp.errors import ExitCode, XpError
from xp.lib.atomic import try_lock
from xp.tasks.config import Purpose
from xp.tasks.manifest import Manifest, read_manifest
from xp.tasks.prompt_lengths import SUFFIX
from xp.tasks.row import TaskRow
from xp.tasks.store import TaskSet, open_verified, writing_below

COUNTS = "counts"
"""State of a directory with prompt lengths, beside a set."""
OTHER: Final = "not of xp"
"""State of a directory whose name xp gives to none; it is listed and left alone."""
_XP_NAMES: Final = re.compile(r"[0-9a-f]{20}(\.tokens|\.corrupt-[0-9]+)?(\.work)?")
"""Names that xp gives: the key of a request, with suffixes (see `store.py`)."""


@dataclass(frozen=True)
class StoreEntry:
    """One directory of the store."""

    path: Path
    manifest: Manifest | None
    """The manifest. None means that the directory is work in progress, set aside, damaged, or not of xp (see
    `state`)."""
    state: str
    """State of the directory; `whole` is about the manifest only, `verify` also reads the files."""
    num_bytes: int
    modified: float
    """Time of the last change, in seconds since the epoch."""


def list_sets(store: Path) -> list[StoreEntry]:
    """All directories of the store, the newest first."""
    sets = [_look_at(path) for path in sorted(store.glob("*")) if path.is_dir()]
    return sorted(sets, key=lambda listed: -listed.modified)


def _look_at(path: Path) -> StoreEntry:
    num_bytes = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    manifest = None
    state = "damaged"
    if not _XP_NAMES.fullmatch(path.name):
        state = OTHER
    elif path.suffix == ".work":
        state = "unfinished"
    elif ".corrupt-" in path.name:
        state = "set aside"
    elif path.suffix == SUFFIX:
        state = COUNTS
    else:
        with suppress(OSError, ValueError):
            manifest = read_manifest(path)
            state = "whole"
    return StoreEntry(path, manifest, state, num_bytes, path.stat().st_mtime)


def find_set(store: Path, key: str) -> Path:
    """Path of the only set whose key begins with `key`; raises XpError otherwise."""
    names = [
        listed.path.name for listed in list_sets(store) if listed.state in ("whole", "damaged")
    ]
    matching = [name for name in names if name.startswith(key)]
    if len(matching) != 1:
        legal = ", ".join(matching or names) or "none"
        raise XpError(
            f"{store} holds {len(matching) or 'no'} task sets whose key begins with {key!r}; there are: {legal}",
            ExitCode.TASKS,
        )
    return store / matching[0]


def verify_set(path: Path) -> TaskSet:
    """Checks all hashes of a set, and reads its whole table; raises XpError."""
    task_set = open_verified(path)
    deque(task_set.rows(), maxlen=0)
    return task_set


def show_tasks(
    path: Path, num_tasks: int, purpose: Purpose | None, task_id: str | None
) -> Iterator[TaskRow]:
    """The first tasks of a set, or the task `task_id`; reads what it returns."""
    rows = open_verified(path).rows(purpose)
    if task_id is None:
        yield from islice(rows, num_tasks)
        return
    chosen = next((row for row in rows if row.task_id == task_id), None)
    if chosen is None:
        raise XpError(
            f"the task set {path} has no task {task_id!r}; a task id is member/split/index",
            ExitCode.TASKS,
        )
    yield chosen


def prune(store: Path, keep: Sequence[str], *, is_dry: bool) -> list[StoreEntry]:
    """Removes directories of xp's that no kept key needs, except sets that are being built; returns the removed ones.

    Args:
        store: path of the store.
        keep: keys, or beginnings of keys, of directories to keep, finished or not.
        is_dry: whether nothing is removed, and the result lists what would be.

    Raises:
        XpError: a key to keep is the beginning of no directory's; nothing is removed.
    """
    removed = []
    sets = list_sets(store)
    for prefix in keep:
        if not prefix or not any(
            listed.path.name.startswith(prefix) for listed in sets if listed.state != OTHER
        ):
            raise XpError(
                f"--keep {prefix!r}: no task set in {store} begins with it, and nothing was removed;"
                " see python -m xp tasks list for the keys"
            )
    for listed in sets:
        if listed.state == OTHER:
            continue
        key = listed.path.name.partition(".")[0]
        is_kept = any(key.startswith(prefix) for prefix in keep)
        if is_kept and listed.state in ("whole", "unfinished", COUNTS):
            continue
        with writing_below(store), try_lock(store / f".{key}.lock") as is_free:
            if not is_free:
                continue
            removed.append(listed)
            if not is_dry:
                shutil.rmtree(listed.path)
    return removed
