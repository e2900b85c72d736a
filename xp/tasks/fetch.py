"""Opens a session for every selected task that no finished shard holds, many at a time, and writes the shards."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from queue import SimpleQueue
from typing import Protocol

from xp.envs.base import EnvFault, EnvUnavailable, Provider, Task, UnsafeOrigin
from xp.errors import XpError
from xp.tasks.config import MemberConfig, PrepareConfig, Purpose
from xp.tasks.faults import Point, fault_point
from xp.tasks.manifest import Failure
from xp.tasks.questions import ATTEMPTS, FIRST_PAUSE_S, ask, hash_task, read_task, reason, unreachable
from xp.tasks.request import canonical_request, digest_of
from xp.tasks.selection import Block
from xp.tasks.shards import Entry, WorkDirectory

WINDOW = 256
"""Tasks on their way or waiting for a thread: enough to keep the threads busy while the next ones are listed."""
LISTED_BLOCKS = 8
"""Blocks whose tasks are listed by one question."""
STOP_GRACE_S = 10.0
GIVE_UP_AFTER = 64
"""Tasks that fail in a row, none in between succeeding, because the environment is not there."""


class Watcher(Protocol):
    """Who is told how far it is."""

    def known(self, num_tasks: int) -> None:
        """A finished shard of an earlier run holds them."""

    def fetched(self, num_tasks: int) -> None: ...

    def failed(self) -> None: ...


@dataclass
class _OpenBlock:
    """A block whose tasks are on their way."""

    block: Block
    entries: dict[int, Entry]
    remaining: int


@dataclass(frozen=True)
class _Unavailable(Failure):
    """The environment was not there: what ends the stage when it goes on."""


@dataclass
class Fetcher:
    """Fetches blocks in order; single use."""

    config: PrepareConfig
    providers: Mapping[str, Provider]
    work: WorkDirectory
    watcher: Watcher
    failures: list[Failure] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)
    _flying: dict[Future[Entry | Failure], tuple[_OpenBlock, int]] = field(default_factory=dict)
    _done: SimpleQueue[Future[Entry | Failure]] = field(default_factory=SimpleQueue)
    _held_out: dict[str, dict[str, int]] = field(default_factory=dict)
    _failed_in_a_row: int = 0

    def run(self, blocks: Sequence[Block]) -> tuple[Failure, ...]:
        """All that can be fetched is in a shard afterwards; gives back what cannot, in the order of the tasks."""
        self._gates = {name: threading.BoundedSemaphore(m.env.limits.max_sessions) for name, m in self._members()}
        self._identities = {name: _identity(self.config, name) for name, _ in self._members()}
        pool = ThreadPoolExecutor(self.config.concurrency, thread_name_prefix="prepare")
        try:
            for group in _groups(blocks):
                self._begin(group, pool)
            while self._flying:
                self._collect()
        finally:
            self._stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            self._keep_finished()
        failed = {failure.task_id: failure for failure in self.failures}
        order = (block.task_id(index) for block in blocks for index in block.indices) if failed else ()
        return tuple(failed[task_id] for task_id in order if task_id in failed)

    def _keep_finished(self) -> None:
        """What had been fetched when the run was stopped goes into its shards, as far as the disk takes it."""
        running = {future: where for future, where in self._flying.items() if not future.cancelled()}
        done, _ = wait(running, timeout=STOP_GRACE_S)
        touched = {where[0].block.number: where[0] for where in self._flying.values()}
        for future in done:
            opened, index = running[future]
            if future.exception() is None and isinstance(result := future.result(), Entry):
                opened.entries[index] = result
        with suppress(OSError):
            for opened in touched.values():
                if opened.entries:
                    self.work.write(opened.block, opened.entries)

    def _members(self) -> list[tuple[str, MemberConfig]]:
        return sorted(self.config.members.items())

    def _begin(self, group: Sequence[Block], pool: ThreadPoolExecutor) -> None:
        """Ask for the descriptions of what no shard holds, all in one question, and set out for each."""
        known = [self.work.read(block) for block in group]
        blocks = list(zip(group, known, strict=True))
        missing = [index for block, entries in blocks for index in block.indices if index not in entries]
        tasks = self._list(group[0], missing) if missing else {}
        for block, entries in blocks:
            self.watcher.known(len(entries))
            for entry in entries.values():
                self._note_held_out(block, entry.task_hash)
            self._open_block(block, entries, [tasks[index] for index in block.indices if index in tasks], pool)

    def _list(self, block: Block, indices: Sequence[int]) -> dict[int, Task]:
        member, provider = self.config.members[block.env], self.providers[block.env]
        tasks = {task.index: task for task in ask(member, lambda: provider.tasks(block.split, indices))}
        if tasks.keys() != set(indices):
            raise unreachable(member, f"of {len(indices)} tasks of {block.split} it listed {len(tasks)}")
        return tasks

    def _open_block(
        self, block: Block, entries: dict[int, Entry], tasks: Sequence[Task], pool: ThreadPoolExecutor
    ) -> None:
        opened = _OpenBlock(block, entries, 0)
        wanted: list[tuple[Task, str]] = []
        for task in tasks:
            task_hash = hash_task(task)
            self._note_held_out(block, task_hash)
            if self._overlaps(block, task_hash):
                entries[task.index] = Entry(task.index, task_hash)
                self.watcher.fetched(1)
            else:
                wanted.append((task, task_hash))
        opened.remaining = len(wanted)
        if tasks and not wanted:
            self.work.write(block, entries)
        for task, task_hash in wanted:
            future = pool.submit(self._fetch, task, task_hash)
            self._flying[future] = (opened, task.index)
            future.add_done_callback(self._done.put)
            while len(self._flying) >= max(WINDOW, 2 * self.config.concurrency):
                self._collect()

    def _note_held_out(self, block: Block, task_hash: str) -> None:
        if block.purpose is Purpose.HELD_OUT:
            hashes = self._held_out.setdefault(self._identities[block.env], {})
            hashes[task_hash] = hashes.get(task_hash, 0) + 1

    def _overlaps(self, block: Block, task_hash: str) -> bool:
        """Where all held-out tasks are one and the same, there is nothing else to train on: kept, and said."""
        hashes = self._held_out.get(self._identities[block.env], {})
        is_uniform = len(hashes) == 1 and sum(hashes.values()) > 1
        return block.purpose is Purpose.TRAIN and task_hash in hashes and not is_uniform

    def _collect(self) -> None:
        """Wait for a finished task and take it in; write the shard whose last task it was."""
        future = self._done.get()
        opened, index = self._flying.pop(future)
        result = future.result()
        if isinstance(result, Entry):
            self._failed_in_a_row = 0
            opened.entries[index] = result
            self.watcher.fetched(1)
            fault_point(Point.TASK)
        else:
            self._take_failure(opened.block, result)
        opened.remaining -= 1
        if opened.remaining == 0 and opened.entries:
            self.work.write(opened.block, opened.entries)

    def _take_failure(self, block: Block, failure: Failure) -> None:
        self.failures.append(Failure(failure.task_id, failure.reason))
        self.watcher.failed()
        self._failed_in_a_row = self._failed_in_a_row + 1 if isinstance(failure, _Unavailable) else 0
        if self._failed_in_a_row >= GIVE_UP_AFTER:
            raise unreachable(self.config.members[block.env], failure.reason)

    def _fetch(self, task: Task, task_hash: str) -> Entry | Failure:
        """In a thread of the pool."""
        member, provider = self.config.members[task.env], self.providers[task.env]
        failure = Failure(task.id, "stopped before it was tried")
        for attempt in range(ATTEMPTS):
            if self._stop.wait(FIRST_PAUSE_S * 2 ** (attempt - 1) if attempt else 0):
                break
            try:
                with self._gates[task.env]:
                    return read_task(provider, task, task_hash, member)
            except XpError:
                raise
            except EnvUnavailable as error:
                failure = _Unavailable(task.id, reason(error))
            except UnsafeOrigin as error:
                return Failure(task.id, reason(error))
            except EnvFault as error:
                failure = Failure(task.id, reason(error))
            except Exception as error:
                # The provider may be a user's own code: a bug in it is one task's failure, told with its type.
                return Failure(task.id, reason(error))
        return failure


def _groups(blocks: Sequence[Block]) -> Iterator[list[Block]]:
    """Blocks of one environment and purpose, a few at a time."""
    for _, run in groupby(blocks, lambda block: (block.env, block.purpose)):
        rest = list(run)
        for start in range(0, len(rest), LISTED_BLOCKS):
            yield rest[start : start + LISTED_BLOCKS]


def _identity(config: PrepareConfig, member: str) -> str:
    """Two members on one environment share their held-out tasks."""
    request = canonical_request(config)["members"][member]
    return digest_of([request[name] for name in ("provider", "target", "serve", "variant", "source")])
