"""Calls of a user's functions, each on the main thread of a process that has no other call meanwhile.

A call that hangs or ends its process costs its own episode alone. The processes are forks of one child, which has
loaded the user's modules and has no threads; there are as many as calls wait for something else than a core.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from typing import Any, Final

from xp.envs.base import DeadlineExceeded, EnvFault, EnvUnavailable, ProtocolError, ResponseLost
from xp.envs.child_process import Child, ChildProcess, result_of
from xp.errors import XpError

LOOK_S: Final = 0.02
"""Seconds between two looks at the processes while a call waits for one."""
PATIENCE_S: Final = 1.0
"""Seconds after which a call that waits gets a process of its own, even if all cores are busy."""
KILL_S: Final = 30.0


class Worker:
    """A forked process, for one call at a time."""

    def __init__(self, child: Child, connection: Connection, number: int) -> None:
        self._child, self._connection, self._number = child, connection, number
        self.is_gone = False
        self.is_used = False
        """True if it had an earlier call, which may have left something that ends it."""

    def ask(self, verb: str, argument: Any, limit_s: float, what: str) -> Any:
        """Sends a request and returns the answer; raises as `xp.envs.child_process.Child.ask` does.

        Raises:
            DeadlineExceeded: the answer took longer than `limit_s` seconds; the process is ended.
            ResponseLost: the process has ended.
            ProtocolError: the argument or the result cannot be sent.
        """
        try:
            self._connection.send((0, verb, self._number, argument))
            if not self._connection.poll(limit_s):
                self.end()
                raise DeadlineExceeded(f"{what} took longer than {limit_s:g} s")
            _, kind, value = self._connection.recv()
        except (EOFError, ConnectionError):
            raise ResponseLost(f"{what}: its process is gone: {self._why()}") from None
        except EnvFault:
            raise
        except Exception as error:  # The user's classes decide what pickling does.
            self.end()
            raise ProtocolError(f"{what}: its data cannot be sent: {error}") from error
        except BaseException:  # Ctrl-C: an answer would be the next call's.
            self.end()
            raise
        return result_of(kind, value, what)

    def is_running(self) -> bool:
        """Returns whether it uses a core now, and does not wait."""
        import psutil

        with suppress(psutil.Error):
            return bool(psutil.Process(self._number).status() == psutil.STATUS_RUNNING)
        return False

    def is_ready(self) -> bool:
        """Returns whether it can have a call: a process that ended closed its connection."""
        return not self.is_gone and self._child.is_alive() and not self._connection.poll()

    def end(self) -> None:
        """Ends the process and what it started."""
        self._tell("kill")
        self._connection.close()

    def _why(self) -> str:
        why = self._tell("end_of")
        self._connection.close()
        return why or "the process that it was forked from ended"

    def _tell(self, verb: str) -> Any:
        self.is_gone = True
        with suppress(EnvFault):
            return self._child.ask(verb, self._number, None, KILL_S, "its end")
        return None


class CallProcesses:
    """The processes for the calls of an environment's functions.

    Args:
        process: the child that they are forked from, which runs `xp.envs.forks.serve_forks`.
        most: largest number of processes. None means that there is none.
        create_timeout_s: seconds to import the user's modules.
        what: the functions, for messages.
    """

    def __init__(
        self, process: ChildProcess, most: int | None, create_timeout_s: float, what: str
    ) -> None:
        self._process, self._most = process, most
        self._start_s, self._what = create_timeout_s, what
        self._loading = threading.Lock()
        self._loaded: Child | None = None
        self._forks_loaded = True
        self._is_closed = False
        self._reset()

    def call(self, verb: str, argument: Any, limit_s: float, what: str) -> Any:
        """Calls a function; raises as `Worker.ask` does. A process that an earlier call may have ended is replaced."""
        with self.worker() as worker:
            try:
                return worker.ask(verb, argument, limit_s, what)
            except ResponseLost:
                if not worker.is_used:
                    raise
        with self.worker(is_new=True) as worker:
            return worker.ask(verb, argument, limit_s, what)

    @contextmanager
    def worker(self, *, is_new: bool = False) -> Iterator[Worker]:
        """A process for a call."""
        worker = self.take(is_new=is_new)
        try:
            yield worker
        finally:
            self.give(worker)

    def take(self, *, is_new: bool = False) -> Worker:
        """A free process, or a new one; waits where there may be no more. The caller must `give` it back.

        Args:
            is_new: whether the process must have had no call.
        """
        if self._owner != os.getpid():  # The parent's processes are not a fork's.
            self._reset()
        began = time.monotonic()
        with self._changed:
            while (worker := None if is_new else self._free_one()) is None:
                if self._is_closed:
                    raise EnvUnavailable(f"{self._what}: its processes are closed")
                if is_new or self._may_start(time.monotonic() - began):
                    break
                self._changed.wait(LOOK_S)
            else:
                self._busy.add(worker)
                return worker
            self._num_starting += 1
        try:
            worker = self._fork()
        finally:
            with self._changed:
                self._num_starting -= 1
                self._changed.notify()
        with self._changed:
            self._busy.add(worker)
        return worker

    def give(self, worker: Worker) -> None:
        """Takes a process back after its call."""
        worker.is_used = True
        with self._changed:
            self._busy.discard(worker)
            if self._is_closed and not worker.is_gone:
                worker.is_gone = True
            elif not worker.is_gone:
                self._free.append(worker)
            self._changed.notify()

    def close(self) -> None:
        """Ends the processes and what they started."""
        self._is_closed = True
        self._process.close()

    def _reset(self) -> None:
        self._owner = os.getpid()
        self._changed = threading.Condition()
        self._free: list[Worker] = []
        self._busy: set[Worker] = set()
        self._num_starting = 0
        self._looked_at = 0.0
        self._num_running = 0

    def _free_one(self) -> Worker | None:
        while self._free:
            worker = self._free.pop()
            if worker.is_ready():
                return worker
        return None

    def _may_start(self, waited_s: float) -> bool:
        """Returns whether a further process would help: calls that wait (for a network) leave cores free."""
        size = len(self._busy) + self._num_starting
        if self._most is not None and size >= self._most:
            return False
        if waited_s > PATIENCE_S:
            return True
        if time.monotonic() - self._looked_at > LOOK_S:
            self._looked_at = time.monotonic()
            self._num_running = sum(worker.is_running() for worker in self._busy)
        return self._num_running + self._num_starting < NUM_CORES

    def _fork(self) -> Worker:
        child = self._ready_child()
        ours, theirs = multiprocessing.Pipe()
        try:
            number = child.ask("fork", 0, None, self._start_s, self._what, theirs.fileno())
        finally:
            theirs.close()
        worker = Worker(child, ours, number)
        worker.ask("begin", None, self._start_s, f"{self._what}'s beginning")
        return worker

    def _ready_child(self) -> Child:
        """The child that is forked; one whose modules cannot be forked is replaced by one without them."""
        with self._loading:
            child = self._process.child()
            if child is self._loaded:
                return child
            if self._forks_loaded:
                self._forks_loaded = child.ask("load", 0, None, self._start_s, self._what)
                if not self._forks_loaded:
                    child.end("its modules cannot be forked")
                    child = self._process.child()
            self._loaded = child
            return child


NUM_CORES: Final = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
"""Cores that this process may use."""

MOST: Final = "processes"
"""Attribute of a user's function or class: largest number of processes that call it, where they share a state."""


def most_of(functions: list[Callable[..., Any]]) -> int | None:
    """The smallest `processes` of some functions; None if none has it.

    Raises:
        XpError: it is no whole number from 1.
    """
    limits = [getattr(one, MOST) for one in functions if hasattr(one, MOST)]
    for limit in limits:
        if not isinstance(limit, int) or limit < 1:
            raise XpError(f"the attribute {MOST} is {limit!r}; set a whole number from 1")
    return min(limits, default=None)
