"""Opens a session for every selected task that no finished shard holds, many at a time, and writes the shards."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count, groupby
from queue import Empty, SimpleQueue
from typing import Protocol

from xp.envs.base import Describer, EnvFault, EnvUnavailable, Message, Provider, Task, ToolSpec, UnsafeOrigin
from xp.envs.loop import current_loop
from xp.errors import XpError
from xp.tasks.config import MemberConfig, PrepareConfig, Purpose
from xp.tasks.faults import FaultPoint, fault_point
from xp.tasks.manifest import Failure
from xp.tasks.questions import TASK_AGAIN, ask, described, entry_of, hash_task, reason, unreachable
from xp.tasks.request import identities
from xp.tasks.selection import Block
from xp.tasks.shards import ShardEntry, WorkDirectory

WINDOW = 1024
"""Tasks of unfinished blocks: enough that the slowest task of each does not leave the others waiting."""
LISTED_BLOCKS = 8
"""Blocks whose tasks are listed by one question."""
SHOW_EVERY_S = 0.2
STOP_GRACE_S = 10.0
GIVE_UP_AFTER = 64
"""Tasks that fail in a row, none in between succeeding, because the environment is not there."""


class Watcher(Protocol):
    """Receiver of progress."""

    def known(self, num_tasks: int) -> None:
        """A finished shard of an earlier run holds them."""

    def fetched(self, num_tasks: int) -> None: ...

    def failed(self, num_tasks: int) -> None: ...


@dataclass
class _OpenBlock:
    """A block whose tasks are on their way."""

    block: Block
    entries: dict[int, ShardEntry]
    wanted: list[tuple[Task, str]]
    """Tasks that no shard holds, each with its hash."""


@dataclass(frozen=True)
class _Unavailable(Failure):
    """The environment was not there: what ends the stage when it goes on."""


@dataclass
class Fetcher:
    """Fetches blocks in order; single use.

    The caller's thread lists tasks and writes shards; sessions are held on the process's loop, which hands over a block
    at a time: a hop between threads costs more than what is left of a task when its last reply is there.
    """

    config: PrepareConfig
    providers: Mapping[str, Provider]
    work: WorkDirectory
    watcher: Watcher
    failures: list[Failure] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)
    _flying: dict[Future[None], _OpenBlock] = field(default_factory=dict)
    _done: SimpleQueue[Future[None]] = field(default_factory=SimpleQueue)
    _held_out: dict[str, dict[str, int]] = field(default_factory=dict)
    _num_fetched: int = 0
    _num_shown: int = 0
    _num_failures_shown: int = 0
    _failed_in_a_row: int = 0

    def run(self, blocks: Sequence[Block]) -> tuple[Failure, ...]:
        """All that can be fetched is in a shard afterwards; gives back what cannot, in the order of the tasks."""
        self._loop = current_loop()
        self._turns = asyncio.Semaphore(self.config.concurrency)
        self._gates = {name: asyncio.Semaphore(member.env.limits.max_sessions) for name, member in self._members()}
        self._identities = identities(self.config)
        self._pool = ThreadPoolExecutor(self.config.concurrency, thread_name_prefix="prepare")
        try:
            for group in _groups(blocks):
                self._begin(group)
            while self._flying:
                self._collect()
        finally:
            self._stop.set()
            self._keep_finished()
            self._pool.shutdown(wait=False, cancel_futures=True)
        failed = {failure.task_id: failure for failure in self.failures}
        order = (block.task_id(index) for block in blocks for index in block.indices) if failed else ()
        return tuple(failed[task_id] for task_id in order if task_id in failed)

    def _keep_finished(self) -> None:
        """Writes the tasks that were fetched before a stop to their shards, as far as the disk has room."""
        wait(self._flying, timeout=STOP_GRACE_S)
        with suppress(OSError):
            for opened in self._flying.values():
                if entries := dict(opened.entries):
                    self.work.write(opened.block, entries)

    def _members(self) -> list[tuple[str, MemberConfig]]:
        return sorted(self.config.members.items())

    def _begin(self, group: Sequence[Block]) -> None:
        """Ask for the descriptions of what no shard holds, all in one question, and set out for each."""
        known = [self.work.read(block) for block in group]
        blocks = list(zip(group, known, strict=True))
        missing = [index for block, entries in blocks for index in block.indices if index not in entries]
        tasks = self._list(group[0], missing) if missing else {}
        for block, entries in blocks:
            self.watcher.known(len(entries))
            for entry in entries.values():
                self._note_held_out(block, entry.task_hash)
            self._open_block(block, entries, [tasks[index] for index in block.indices if index in tasks])

    def _list(self, block: Block, indices: Sequence[int]) -> dict[int, Task]:
        member, provider = self.config.members[block.env], self.providers[block.env]
        tasks = {task.index: task for task in ask(member, lambda: provider.tasks(block.split, indices))}
        if tasks.keys() != set(indices):
            raise unreachable(member, f"of {len(indices)} tasks of {block.split} it listed {len(tasks)}")
        return tasks

    def _open_block(self, block: Block, entries: dict[int, ShardEntry], tasks: Sequence[Task]) -> None:
        wanted: list[tuple[Task, str]] = []
        for task in tasks:
            task_hash = hash_task(task)
            self._note_held_out(block, task_hash)
            if self._overlaps(block, task_hash):
                entries[task.index] = ShardEntry(task.index, task_hash)
                self.watcher.fetched(1)
            else:
                wanted.append((task, task_hash))
        if tasks and not wanted:
            self.work.write(block, entries)
        if not wanted:
            return
        opened = _OpenBlock(block, entries, wanted)
        future = asyncio.run_coroutine_threadsafe(self._fetch_block(opened), self._loop)
        self._flying[future] = opened
        future.add_done_callback(self._done.put)
        while sum(len(one.wanted) for one in self._flying.values()) >= max(WINDOW, 2 * self.config.concurrency):
            self._collect()

    def _note_held_out(self, block: Block, task_hash: str) -> None:
        held_out = self.config.members[block.env].held_out
        if block.purpose is Purpose.HELD_OUT and held_out is not None and not held_out.may_overlap:
            hashes = self._held_out.setdefault(self._identities[block.env], {})
            hashes[task_hash] = hashes.get(task_hash, 0) + 1

    def _overlaps(self, block: Block, task_hash: str) -> bool:
        """Returns whether the task is held out and must not be trained on."""
        hashes = self._held_out.get(self._identities[block.env], {})
        is_uniform = len(hashes) == 1 and sum(hashes.values()) > 1
        return block.purpose is Purpose.TRAIN and task_hash in hashes and not is_uniform

    def _collect(self) -> None:
        """Wait for a finished block and write its shard; show meanwhile how far it is."""
        future = None
        while future is None:
            with suppress(Empty):
                future = self._done.get(timeout=SHOW_EVERY_S)
            self._show()
        future.result()
        opened = self._flying.pop(future)
        if opened.entries:
            self.work.write(opened.block, opened.entries)

    def _show(self) -> None:
        """Shows the loop's counts. Runs here, so that a terminal that blocks delays no session."""
        num_fetched, num_failed = self._num_fetched, len(self.failures)
        self.watcher.fetched(num_fetched - self._num_shown)
        self.watcher.failed(num_failed - self._num_failures_shown)
        self._num_shown, self._num_failures_shown = num_fetched, num_failed

    async def _fetch_block(self, opened: _OpenBlock) -> None:
        """On the process's loop. Afterwards each task is among the entries or the failures, and its session is closed.

        Raises what one of them raised, which stops all the others before their next session.
        """
        tasks = (self._fetch(opened, task, task_hash) for task, task_hash in opened.wanted)
        for error in await asyncio.gather(*tasks, return_exceptions=True):
            if error is not None:
                raise error

    async def _fetch(self, opened: _OpenBlock, task: Task, task_hash: str) -> None:
        try:
            async with self._turns:
                self._take(opened, task, await self._try(task, task_hash))
        except BaseException:
            self._stop.set()
            raise

    def _take(self, opened: _OpenBlock, task: Task, result: ShardEntry | Failure) -> None:
        if isinstance(result, ShardEntry):
            self._failed_in_a_row = 0
            self._num_fetched += 1
            opened.entries[task.index] = result
            fault_point(FaultPoint.TASK)
            return
        self.failures.append(Failure(result.task_id, result.reason))
        self._failed_in_a_row = self._failed_in_a_row + 1 if isinstance(result, _Unavailable) else 0
        if self._failed_in_a_row >= GIVE_UP_AFTER:
            raise unreachable(self.config.members[task.env], result.reason)

    async def _try(self, task: Task, task_hash: str) -> ShardEntry | Failure:
        member, provider = self.config.members[task.env], self.providers[task.env]
        failure = Failure(task.id, "stopped before it was tried")
        for attempt in count(1):
            if self._stop.is_set():
                return failure
            try:
                async with self._gates[task.env]:
                    prompt, tools = await self._describe(provider, task)
                return entry_of(task, task_hash, prompt, tools, member)
            except XpError:
                raise
            except UnsafeOrigin as error:
                return Failure(task.id, reason(error))
            except EnvFault as error:
                kind = _Unavailable if isinstance(error, EnvUnavailable) else Failure
                failure, pause = kind(task.id, reason(error)), TASK_AGAIN.pause_s(error, attempt)
                if pause is None:
                    return failure
            except Exception as error:
                # The provider may be a user's own code: a bug in it is one task's failure, told with its type.
                return Failure(task.id, reason(error))
            await asyncio.sleep(pause)
        raise AssertionError

    async def _describe(self, provider: Provider, task: Task) -> tuple[list[Message], tuple[ToolSpec, ...]]:
        if isinstance(provider, Describer):
            return await provider.describe(task)
        return await self._loop.run_in_executor(self._pool, described, provider, task)


def _groups(blocks: Sequence[Block]) -> Iterator[list[Block]]:
    """Blocks of one environment and purpose, a few at a time."""
    for _, run in groupby(blocks, lambda block: (block.env, block.purpose)):
        rest = list(run)
        for start in range(0, len(rest), LISTED_BLOCKS):
            yield rest[start : start + LISTED_BLOCKS]
