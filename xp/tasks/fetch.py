"""Fetches every selected task that is in no finished shard, with many concurrent sessions, and writes the shards."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from queue import Empty, SimpleQueue

from xp.envs.base import EnvFault, EnvUnavailable, Provider, Task, UnsafeOrigin
from xp.envs.retry import backoff_s
from xp.errors import XpError
from xp.lib.progress import ProgressBar
from xp.tasks.config import PrepareConfig
from xp.tasks.manifest import Failure
from xp.tasks.questions import ask, described, entry_of, hash_task, reason, unreachable
from xp.tasks.selection import Block
from xp.tasks.shards import ShardEntry, WorkDirectory

WINDOW = 1024
"""Largest number of unfinished tasks, so that slow ones do not delay others."""
LISTED_BLOCKS = 8
"""Number of blocks whose tasks are listed by one request."""
SHOW_EVERY_S = 0.2
TRIES = 3
"""Attempts to describe one task."""
STOP_GRACE_S = 10.0
GIVE_UP_AFTER = 64
"""Number of consecutive tasks that fail because the environment is unavailable, after which the stage fails."""


@dataclass
class _OpenBlock:
    """A block whose tasks are being fetched."""

    block: Block
    entries: dict[int, ShardEntry]
    num_pending: int
    """Number of its tasks without an entry or a failure."""


@dataclass(frozen=True)
class _Unavailable(Failure):
    """Failure because the environment was unavailable; many in a row end the stage."""


@dataclass
class Fetcher:
    """Fetches blocks in order; for one use only. Sessions run on threads; the caller's thread writes the shards."""

    config: PrepareConfig
    providers: Mapping[str, Provider]
    work: WorkDirectory
    bar: ProgressBar
    failures: list[Failure] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)
    _flying: dict[Future[ShardEntry | Failure], tuple[_OpenBlock, Task]] = field(
        default_factory=dict
    )
    _done: SimpleQueue[Future[ShardEntry | Failure]] = field(default_factory=SimpleQueue)
    _num_known: int = 0
    """Tasks that finished shards of an earlier run have."""
    _num_fetched: int = 0
    _failed_in_a_row: int = 0

    def run(self, blocks: Sequence[Block]) -> tuple[Failure, ...]:
        """Fetches all tasks into shards; returns the failures, in the order of the tasks."""
        self._began = time.monotonic()
        self._gates = {
            name: threading.Semaphore(member.env.limits.max_sessions)
            for name, member in self.config.members.items()
        }
        self._pool = ThreadPoolExecutor(
            self.config.preparation.concurrency, thread_name_prefix="prepare"
        )
        try:
            for group in _groups(blocks):
                self._begin(group)
            while self._flying:
                self._collect()
        finally:
            self._stop.set()
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._keep_finished()
        failed = {failure.task_id: failure for failure in self.failures}
        order = (block.task_id(index) for block in blocks for index in block.indices)
        return tuple(failed[task_id] for task_id in order if task_id in failed)

    def _keep_finished(self) -> None:
        """Writes the tasks that were fetched before a stop to shards, if the disk has room."""
        # A cancelled future is never reported as done.
        finished, _ = wait(
            [future for future in self._flying if not future.cancelled()], timeout=STOP_GRACE_S
        )
        for future in finished:
            if future.exception() is None:
                entry = future.result()
                if isinstance(entry, ShardEntry):
                    opened, task = self._flying[future]
                    opened.entries[task.index] = entry
        with suppress(OSError):
            for opened in {opened.block: opened for opened, _ in self._flying.values()}.values():
                if opened.entries:
                    self.work.write(opened.block, opened.entries)

    def _begin(self, group: Sequence[Block]) -> None:
        """Lists the tasks that are in no shard with one request, and begins to fetch each."""
        known = [self.work.read(block) for block in group]
        blocks = list(zip(group, known, strict=True))
        missing = [
            index for block, entries in blocks for index in block.indices if index not in entries
        ]
        tasks = self._list(group[0], missing) if missing else {}
        for block, entries in blocks:
            self._num_known += len(entries)
            self._open_block(
                block, entries, [tasks[index] for index in block.indices if index in tasks]
            )

    def _list(self, block: Block, indices: Sequence[int]) -> dict[int, Task]:
        member = self.config.members[block.env]
        provider = self.providers[block.env]
        listed = ask(member, partial(provider.tasks, block.split, indices))
        tasks = {task.index: task for task in listed}
        if tasks.keys() != set(indices):
            raise unreachable(
                member, f"it listed {len(tasks)} of the {len(indices)} tasks of {block.split}"
            )
        return tasks

    def _open_block(
        self, block: Block, entries: dict[int, ShardEntry], tasks: Sequence[Task]
    ) -> None:
        opened = _OpenBlock(block, entries, len(tasks))
        for task in tasks:
            future = self._pool.submit(self._try, task)
            self._flying[future] = opened, task
            future.add_done_callback(self._done.put)
        while len(self._flying) >= max(WINDOW, 2 * self.config.preparation.concurrency):
            self._collect()

    def _collect(self) -> None:
        """Waits for a finished task; writes the shard of a block after its last one; shows progress meanwhile."""
        future = None
        while future is None:
            with suppress(Empty):
                future = self._done.get(timeout=SHOW_EVERY_S)
            self._show()
        opened, task = self._flying[future]
        self._take(opened, task, future.result())
        opened.num_pending -= 1
        if not opened.num_pending and opened.entries:
            self.work.write(opened.block, opened.entries)
        # A signal may stop this thread anywhere: a task leaves the list after its shard is written, never before.
        del self._flying[future]

    def _show(self) -> None:
        num_failed = len(self.failures)
        done = self._num_known + self._num_fetched + num_failed
        rate = self._num_fetched / max(time.monotonic() - self._began, 1e-3)
        left = f", {(self.bar.total - done) / rate:.0f} s left" if rate else ""
        self.bar.show(
            done, f"{rate:.0f}/s" + (f", {num_failed} failed" if num_failed else ""), left
        )

    def _take(self, opened: _OpenBlock, task: Task, result: ShardEntry | Failure) -> None:
        if isinstance(result, ShardEntry):
            self._failed_in_a_row = 0
            self._num_fetched += 1
            opened.entries[task.index] = result
            return
        self.failures.append(Failure(result.task_id, result.reason))
        self._failed_in_a_row = self._failed_in_a_row + 1 if isinstance(result, _Unavailable) else 0
        if self._failed_in_a_row >= GIVE_UP_AFTER:
            raise unreachable(self.config.members[task.env], result.reason)

    def _try(self, task: Task) -> ShardEntry | Failure:
        member = self.config.members[task.env]
        provider = self.providers[task.env]
        failure = Failure(task.id, "stopped before it was tried")
        for attempt in range(1, TRIES + 1):
            try:
                with self._gates[task.env]:
                    if self._stop.is_set():
                        break
                    prompt, tools = described(provider, task)
                return entry_of(task, hash_task(task), prompt, tools, member)
            except XpError:
                raise
            except UnsafeOrigin as error:
                return Failure(task.id, reason(error))
            except EnvFault as error:
                kind = _Unavailable if isinstance(error, EnvUnavailable) else Failure
                failure = kind(task.id, reason(error))
                if attempt < TRIES:
                    self._stop.wait(backoff_s(attempt))
            except Exception as error:
                # The provider may be the user's code: a bug in it is the failure of one task, with its type.
                return Failure(task.id, reason(error))
        return failure


def _groups(blocks: Sequence[Block]) -> Iterator[list[Block]]:
    """Groups of a few blocks of one environment and purpose."""
    for _, run in groupby(blocks, lambda block: (block.env, block.purpose)):
        rest = list(run)
        for start in range(0, len(rest), LISTED_BLOCKS):
            yield rest[start : start + LISTED_BLOCKS]
