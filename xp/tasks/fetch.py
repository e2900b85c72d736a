"""Opens a session for every selected task that no finished shard holds, many at a time, and writes the shards."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from xp.envs.base import EnvFault, EnvUnavailable, Message, Provider, Session, Task, UnsafeOrigin
from xp.episode.prompt import opening_messages, tool_schemas
from xp.errors import ExitCode, XpError
from xp.tasks.config import MemberConfig, PrepareConfig, Purpose
from xp.tasks.faults import Point, fault_point
from xp.tasks.manifest import Failure
from xp.tasks.request import canonical_request, digest_of
from xp.tasks.selection import Block
from xp.tasks.shards import Entry, WorkDirectory

Answer = TypeVar("Answer")

ATTEMPTS = 3
FIRST_PAUSE_S = 0.25
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
    _held_out: dict[str, dict[str, int]] = field(default_factory=dict)
    _failed_in_a_row: int = 0

    def run(self, blocks: Sequence[Block]) -> tuple[Failure, ...]:
        """All that can be fetched is in a shard afterwards; gives back what cannot, in the order of the tasks."""
        self._gates = {name: threading.BoundedSemaphore(m.env.limits.max_sessions) for name, m in self._members()}
        self._identities = {name: _identity(self.config, name) for name, _ in self._members()}
        pool = ThreadPoolExecutor(self.config.concurrency, thread_name_prefix="prepare")
        try:
            for block in blocks:
                self._begin(block, pool)
            while self._flying:
                self._collect()
        finally:
            self._stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            self._keep_finished()
        order = {block.task_id(index): n for n, block in enumerate(blocks) for index in block.indices}
        return tuple(sorted(self.failures, key=lambda f: (order[f.task_id], f.task_id)))

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

    def _begin(self, block: Block, pool: ThreadPoolExecutor) -> None:
        entries = self.work.read(block)
        missing = [index for index in block.indices if index not in entries]
        for entry in entries.values():
            self._note_held_out(block, entry.task_hash)
        self.watcher.known(len(entries))
        if not missing:
            return
        provider = self.providers[block.env]
        tasks = ask(self.config.members[block.env], lambda: provider.tasks(block.split, missing))
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
        if not wanted:
            self.work.write(block, entries)
        for task, task_hash in wanted:
            self._flying[pool.submit(self._fetch, task, task_hash)] = (opened, task.index)
            while len(self._flying) >= 2 * self.config.concurrency:
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
        """Take in at least one finished task; write each shard whose last task it was."""
        done, _ = wait(self._flying, return_when=FIRST_COMPLETED)
        for future in done:
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
            raise _unreachable(self.config.members[block.env], failure.reason)

    def _fetch(self, task: Task, task_hash: str) -> Entry | Failure:
        """In a thread of the pool."""
        member, provider = self.config.members[task.env], self.providers[task.env]
        failure = Failure(task.id, "stopped before it was tried")
        for attempt in range(ATTEMPTS):
            if self._stop.wait(FIRST_PAUSE_S * 2 ** (attempt - 1) if attempt else 0):
                break
            try:
                with self._gates[task.env]:
                    return _read_task(provider, task, task_hash, member.system_prompt)
            except XpError:
                raise
            except EnvUnavailable as error:
                failure = _Unavailable(task.id, _reason(error))
            except UnsafeOrigin as error:
                return Failure(task.id, _reason(error))
            except EnvFault as error:
                failure = Failure(task.id, _reason(error))
            except Exception as error:
                # The provider may be a user's own code: a bug in it is one task's failure, told with its type.
                return Failure(task.id, _reason(error))
        return failure


def _read_task(provider: Provider, task: Task, task_hash: str, system_prompt: str | None) -> Entry:
    session: Session = provider.open(task)
    try:
        prompt, tools = session.prompt(), session.tools()
    finally:
        session.close()
    messages = opening_messages(system_prompt, prompt, tools)
    if not messages:
        raise ValueError("the environment has no prompt for this task")
    clean = tuple(Message(role=_valid(message["role"]), content=_valid(message["content"])) for message in messages)
    schemas = json.dumps(tool_schemas(tools), sort_keys=True, ensure_ascii=True)
    return Entry(task.index, task_hash, clean, schemas)


def _valid(text: str) -> str:
    """JSON can carry half a surrogate pair, Parquet and tokenizers cannot."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def hash_task(task: Task) -> str:
    """Of the environment's own description; a task without one is told apart by its place."""
    return digest_of(task.spec or {"split": task.split, "index": task.index})


def _identity(config: PrepareConfig, member: str) -> str:
    """Two members on one environment share their held-out tasks."""
    request = canonical_request(config)["members"][member]
    return digest_of([request[name] for name in ("provider", "target", "serve", "variant", "source")])


def _reason(error: Exception) -> str:
    text = "".join(char if char.isprintable() else " " for char in str(error))
    return f"{type(error).__name__}: {' '.join(text.split())[:300]}"


def ask(member: MemberConfig, question: Callable[[], Answer]) -> Answer:
    """A question without which nothing can be prepared: an environment that does not answer it ends the stage."""
    for attempt in range(ATTEMPTS):
        try:
            return question()
        except EnvUnavailable as error:
            if attempt == ATTEMPTS - 1:
                raise _unreachable(member, _reason(error)) from error
            time.sleep(FIRST_PAUSE_S * 2**attempt)
        except (EnvFault, OSError) as error:
            raise _unreachable(member, _reason(error)) from error
    raise AssertionError


def _unreachable(member: MemberConfig, reason: str) -> XpError:
    env = member.env
    return XpError(
        f"environment {env.name} ({env.target or env.serve or env.provider}) does not answer as it should: {reason}\n"
        "check that its server runs and that the address is right; finished shards are kept for the next start",
        ExitCode.ENVIRONMENT,
    )
