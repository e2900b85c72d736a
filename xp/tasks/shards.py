"""The work directory of one set: finished shards, which a later run reuses, and the builder's lock."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xp.envs.base import Message
from xp.lib.atomic import TEMPORARY, replacing, try_lock
from xp.lib.digest import canonical_json, digest_of
from xp.tasks.row import TaskRow
from xp.tasks.selection import Block


@dataclass(frozen=True)
class ShardEntry:
    """Entry of one selected task."""

    index: int
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

    def row(self, block: Block, weight: float) -> TaskRow:
        name = block.task_id(self.index)
        return TaskRow(
            task_id=name,
            env=block.env,
            purpose=block.purpose,
            split=block.split,
            weight=weight,
            **vars(self),
        )


class WorkDirectory:
    """`<key>.work/`: one file per shard, written atomically, and verified by its hash when read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def begin(self, stamp: Mapping[str, Any], *, is_new: bool) -> None:
        """Keeps an earlier builder's shards with the same stamp (request and environment versions), removes others.

        Args:
            stamp: what the shards depend on.
            is_new: whether all are removed, since they depend on files that may have changed.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        text = canonical_json(stamp)
        known = self.path / "stamp.json"
        if is_new or not known.is_file() or known.read_bytes() != text.encode():
            self.clear()
            self.path.mkdir(parents=True)
            with replacing(known) as temporary:
                temporary.write_text(text)
        for orphan in self.path.glob(f".*{TEMPORARY}"):
            orphan.unlink()
        with suppress(FileNotFoundError):
            shutil.rmtree(self.path / "set")

    @contextmanager
    def dropped_if_unused(self) -> Iterator[None]:
        """Context manager: removes the directory if the build fails before its first shard."""
        try:
            yield
        except BaseException:
            if not any(self.path.glob("shard-*.jsonl")):
                self.clear()
            raise

    def write(self, block: Block, entries: Mapping[int, ShardEntry]) -> None:
        ordered = [entries[index] for index in block.indices if index in entries]
        lines = [canonical_json([e.index, e.task_hash, e.messages, e.tools]) for e in ordered]
        head = canonical_json({"sha256": digest_of(lines), "block": _identity(block)})
        with replacing(self.file(block)) as temporary:
            temporary.write_text("\n".join([head, *lines]) + "\n", encoding="utf-8")

    def read(self, block: Block) -> dict[int, ShardEntry]:
        """Entries of a shard by index; empty if there is no shard or it is damaged."""
        try:
            head, *lines = self.file(block).read_text(encoding="utf-8").splitlines()
            claimed = json.loads(head)
            if claimed != {"sha256": digest_of(lines), "block": _identity(block)}:
                return {}
            entries = [ShardEntry(i, h, tuple(m), t) for i, h, m, t in map(json.loads, lines)]
        except (OSError, TypeError, ValueError, RecursionError):
            return {}
        return {entry.index: entry for entry in entries}

    def clear(self) -> None:
        with suppress(FileNotFoundError):
            shutil.rmtree(self.path)

    def file(self, block: Block) -> Path:
        """Path of a block's shard."""
        return self.path / f"shard-{block.number:06d}.jsonl"


def _identity(block: Block) -> str:
    return digest_of([block.env, block.purpose, block.split, block.indices])


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
