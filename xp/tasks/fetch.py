"""Fetches every selected task that no earlier run has fetched, with many concurrent sessions."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
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
from xp.tasks.entries import TaskEntry, WorkDirectory
from xp.tasks.manifest import Failure
from xp.tasks.questions import ask, described, entry_of, hash_task, reason, unreachable
from xp.tasks.selection import SelectedTask

WINDOW = 1024
"""Largest number of unfinished tasks, so that slow ones do not delay others."""
LISTED_TASKS = 512
"""Largest number of tasks that are listed by one request."""
SHOW_EVERY_S = 0.2
TRIES = 3
"""Attempts to describe one task."""
STOP_GRACE_S = 10.0
GIVE_UP_AFTER = 64
"""Number of consecutive tasks that fail because the environment is unavailable, after which the stage fails."""


@dataclass(frozen=True)
class _Unavailable(Failure):
    """Failure because the environment was unavailable; many in a row end the stage."""


@dataclass
class Fetcher:
    """Fetches tasks in order; for one use only. Sessions run on threads, which keep each task in the work directory."""

    config: PrepareConfig
    providers: Mapping[str, Provider]
    work: WorkDirectory
    bar: ProgressBar
    failures: list[Failure] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)
    _done: SimpleQueue[Future[Failure | None]] = field(default_factory=SimpleQueue)
    _num_pending: int = 0
    """Tasks whose future was not taken from the queue."""
    _num_known: int = 0
    """Tasks that an earlier run fetched."""
    _num_fetched: int = 0
    _failed_in_a_row: int = 0

    def run(self, tasks: Sequence[SelectedTask]) -> tuple[Failure, ...]:
        """Fetches all tasks into the work directory; returns the failures, in the order of the tasks."""
        missing = {task.task_id: task for task in tasks if task.task_id not in self.work}
        self._num_known = len(tasks) - len(missing)
        self._began = time.monotonic()
        self._gates = {
            name: threading.Semaphore(member.env.limits.max_sessions)
            for name, member in self.config.members.items()
        }
        concurrency = self.config.preparation.concurrency
        pool = ThreadPoolExecutor(concurrency, thread_name_prefix="prepare")
        try:
            for task in self._listed(missing.values()):
                self._num_pending += 1
                pool.submit(self._fetch, task).add_done_callback(self._done.put)
                while self._num_pending >= max(WINDOW, 2 * concurrency):
                    self._collect()
            while self._num_pending:
                self._collect()
        finally:
            self._stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            self._await_threads()
        failed = {failure.task_id: failure for failure in self.failures}
        return tuple(failed[task_id] for task_id in missing if task_id in failed)

    def _await_threads(self) -> None:
        """After a stop: gives the threads time to keep the tasks that they fetch, and to close their sessions."""
        end = time.monotonic() + STOP_GRACE_S
        with suppress(Empty):
            while self._num_pending:
                self._done.get(timeout=max(0.0, end - time.monotonic()))
                self._num_pending -= 1

    def _listed(self, missing: Iterable[SelectedTask]) -> Iterator[Task]:
        """The tasks with the environments' descriptions, of which one request lists many."""
        for (env, split), run in groupby(missing, lambda task: (task.env, task.split)):
            indices = [task.index for task in run]
            for start in range(0, len(indices), LISTED_TASKS):
                yield from self._list(env, split, indices[start : start + LISTED_TASKS])

    def _list(self, env: str, split: str, indices: Sequence[int]) -> Iterator[Task]:
        member = self.config.members[env]
        listed = ask(member, partial(self.providers[env].tasks, split, indices))
        tasks = {task.index: task for task in listed}
        if tasks.keys() != set(indices):
            raise unreachable(
                member, f"it listed {len(tasks)} of the {len(indices)} tasks of {split}"
            )
        return (tasks[index] for index in indices)

    def _collect(self) -> None:
        """Waits for a finished task; shows progress meanwhile."""
        future = None
        while future is None:
            with suppress(Empty):
                future = self._done.get(timeout=SHOW_EVERY_S)
            self._show()
        self._num_pending -= 1
        self._count(future.result())

    def _show(self) -> None:
        num_failed = len(self.failures)
        done = self._num_known + self._num_fetched + num_failed
        rate = self._num_fetched / max(time.monotonic() - self._began, 1e-3)
        speed = f"{rate:.0f}/s"
        if num_failed:
            speed += f", {num_failed} failed"
        left = ""
        if rate:
            left = f", {(self.bar.total - done) / rate:.0f} s left"
        self.bar.show(done, speed, left)

    def _count(self, failure: Failure | None) -> None:
        """Counts a task; raises XpError if an environment has been unavailable for many."""
        if failure is None:
            self._failed_in_a_row = 0
            self._num_fetched += 1
            return
        self.failures.append(Failure(failure.task_id, failure.reason))
        if not isinstance(failure, _Unavailable):
            self._failed_in_a_row = 0
            return
        self._failed_in_a_row += 1
        if self._failed_in_a_row >= GIVE_UP_AFTER:
            env, _, _ = failure.task_id.partition("/")
            raise unreachable(self.config.members[env], failure.reason)

    def _fetch(self, task: Task) -> Failure | None:
        """Keeps the entry of a task; returns the failure if there is none."""
        result = self._try(task)
        if isinstance(result, Failure):
            return result
        self.work.add(task.id, result)
        return None

    def _try(self, task: Task) -> TaskEntry | Failure:
        member = self.config.members[task.env]
        provider = self.providers[task.env]
        failure = Failure(task.id, "stopped before it was tried")
        for attempt in range(1, TRIES + 1):
            try:
                with self._gates[task.env]:
                    if self._stop.is_set():
                        break
                    prompt, tools = described(provider, task)
                return entry_of(hash_task(task), prompt, tools, member)
            except XpError:
                raise
            except UnsafeOrigin as error:
                return Failure(task.id, reason(error))
            except EnvFault as error:
                failure = Failure(task.id, reason(error))
                if isinstance(error, EnvUnavailable):
                    failure = _Unavailable(task.id, reason(error))
                if attempt < TRIES:
                    self._stop.wait(backoff_s(attempt))
            except Exception as error:
                # The provider may be the user's code: a bug in it is the failure of one task, with its type.
                return Failure(task.id, reason(error))
        return failure
