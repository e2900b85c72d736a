"""The work directory of one set: the tasks that were fetched, which a later run reuses, and the builder's lock."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, Final

from xp.envs.base import Message
from xp.lib.atomic import TEMPORARY, replacing, try_lock
from xp.lib.digest import canonical_json
from xp.tasks.row import TaskRow
from xp.tasks.selection import SelectedTask

ENTRIES: Final = "entries.jsonl"


@dataclass(frozen=True)
class TaskEntry:
    """What a task set has of one task."""

    task_hash: str
    messages: tuple[Message, ...]
    tools: str = "[]"

    @property
    def prompt_characters(self) -> int:
        return sum(len(message["content"]) for message in self.messages)

    @property
    def prompt_digest(self) -> bytes:
        """Digest of messages and tools."""
        return hashlib.sha256(canonical_json([self.messages, self.tools]).encode()).digest()[:16]

    def row(self, task: SelectedTask, weight: float) -> TaskRow:
        return TaskRow(
            task_id=task.task_id,
            env=task.env,
            purpose=task.purpose,
            split=task.split,
            index=task.index,
            weight=weight,
            **vars(self),
        )


class WorkDirectory:
    """`<key>.work/`: a file with one line for each fetched task. A line that was cut off is not read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path / ENTRIES
        self._offsets: dict[str, int] = {}
        """Task id -> begin of its line in the file."""
        self._lock = Lock()

    def begin(self, stamp: Mapping[str, Any], *, anew: Set[str]) -> None:
        """Keeps an earlier builder's tasks with the same stamp (request and environment versions), removes others.

        Args:
            stamp: what the tasks depend on.
            anew: members whose tasks are fetched again, since they depend on files that may have changed.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        text = canonical_json(stamp)
        known = self.path / "stamp.json"
        if not known.is_file() or known.read_bytes() != text.encode():
            self.clear()
            self.path.mkdir(parents=True)
            with replacing(known) as temporary:
                temporary.write_text(text)
        for orphan in self.path.glob(f".*{TEMPORARY}"):
            orphan.unlink()
        with suppress(FileNotFoundError):
            shutil.rmtree(self.path / "set")
        with suppress(FileNotFoundError):
            self._read(anew)

    def _read(self, anew: Set[str]) -> None:
        offset = 0
        with self._file.open("rb") as lines:
            for line in lines:
                with suppress(ValueError, TypeError, AttributeError):
                    task_id, _, _, _ = json.loads(line)
                    if task_id.partition("/")[0] not in anew:
                        self._offsets[task_id] = offset
                offset += len(line)

    @contextmanager
    def dropped_if_unused(self) -> Iterator[None]:
        """Context manager: removes the directory if the build fails before its first task."""
        try:
            yield
        except BaseException:
            if not self._file.exists():
                self.clear()
            raise

    def __contains__(self, task_id: str) -> bool:
        return task_id in self._offsets

    def add(self, task_id: str, entry: TaskEntry) -> None:
        """Appends a task; may be called from any thread."""
        line = canonical_json([task_id, entry.task_hash, entry.messages, entry.tools])
        with self._lock, self._file.open("ab") as file:
            # The line break comes first: it also ends a line that was cut off.
            file.write(b"\n")
            self._offsets[task_id] = file.tell()
            file.write(line.encode())

    def entries(self, tasks: Iterable[SelectedTask]) -> Iterator[tuple[SelectedTask, TaskEntry]]:
        """The tasks that were fetched, each with its entry."""
        if not self._offsets:
            return
        with self._file.open("rb") as file:
            for task in tasks:
                if task.task_id in self:
                    file.seek(self._offsets[task.task_id])
                    _, task_hash, messages, tools = json.loads(file.readline())
                    yield task, TaskEntry(task_hash, tuple(messages), tools)

    def clear(self) -> None:
        with suppress(FileNotFoundError):
            shutil.rmtree(self.path)


@contextmanager
def builder_lock(path: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Context manager: lock for one builder at a time; the kernel frees it when the process ends."""
    from filelock import FileLock

    with try_lock(path) as is_free:
        if is_free:
            yield
            return
    on_wait()
    with FileLock(path).acquire(poll_interval=0.05):
        yield
