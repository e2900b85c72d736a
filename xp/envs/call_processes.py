"""Calls of a user's functions, each on the main thread of a process that has no other call meanwhile.

A call that hangs or ends its process costs its own episode alone. The processes are forks of one child, which has
loaded the user's modules and has no threads; there are as many as calls wait for something else than a core.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from xp.envs.base import DeadlineExceeded, EnvFault, EnvUnavailable, ProtocolError, ResponseLost
from xp.envs.child_process import Child, ChildProcess, result_of

LOOK_S: Final = 0.1
"""Seconds between two looks at the processes while a call waits for one."""
YOUNG_S: Final = 0.005
"""Seconds of a call before it counts as one that waits."""
NEVER: Final = float("inf")
PATIENCE_S: Final = 10.0
"""Seconds after which a call that waits gets a process of its own, even if all cores are busy."""
END_S: Final = 30.0
NUM_CORES: Final = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
"""Cores that this process may use."""


class CallProcess:
    """A forked process, for one call at a time."""

    def __init__(self, child: Child, connection: Connection, number: int) -> None:
        self._child = child
        self._connection = connection
        self.number = number
        self.is_gone = False
        self.asked_at = NEVER
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
            self._connection.send((0, verb, self.number, argument))
            self.asked_at = time.monotonic()
            if not self._connection.poll(limit_s):
                self._end(now=True)
                raise DeadlineExceeded(f"{what} took longer than {limit_s:g} s")
            _, kind, value = self._connection.recv()
        except EnvFault:
            raise
        except (EOFError, ConnectionError):
            why = self._end(now=False)
            raise ResponseLost(f"{what}: its process is gone: {why}") from None
        except Exception as error:  # The user's classes decide what pickling does.
            self._end(now=True)
            raise ProtocolError(f"{what}: its data cannot be sent: {error}") from error
        except BaseException:  # Ctrl-C: the answer would be the next call's.
            self._end(now=True)
            raise
        return result_of(kind, value, what)

    def is_running(self) -> bool:
        """Returns whether its call uses a core, or has ended: it does not wait for something else."""
        try:
            if time.monotonic() - self.asked_at < YOUNG_S or self._connection.poll():
                return True
            stat = Path(f"/proc/{self.number}/stat").read_bytes()
        except OSError:
            return False
        return stat.rpartition(b") ")[2].startswith(b"R")

    def is_ready(self) -> bool:
        """Returns whether it can have a call: the connection of a process that ended is at its end."""
        return self._child.is_alive() and not self._connection.poll()

    def _end(self, *, now: bool) -> str:
        """Says how the process ended, which is ended with what it started if `now`."""
        self.is_gone = True
        self._connection.close()
        try:
            return str(self._child.ask("end", self.number, now, END_S, "its end"))
        except EnvFault as fault:
            return str(fault)


class CallProcesses:
    """The processes for the calls of an environment's functions.

    Args:
        process: the child that they are forked from, which runs `xp.envs.forks.serve_forks`.
        create_timeout_s: seconds to import the user's modules.
        what: the functions, for messages.
    """

    def __init__(self, process: ChildProcess, create_timeout_s: float, what: str) -> None:
        self._process = process
        self._start_s = create_timeout_s
        self.what = what
        self._loading = threading.Lock()
        self._loaded: Child | None = None
        self._can_fork = True
        self._most: int | None = None
        self._is_closed = False
        self._changed = threading.Condition()
        self._free: list[CallProcess] = []
        self._busy: set[CallProcess] = set()
        self._num_starting = 0
        self._looked_at = 0.0
        self._num_running = 0

    def call(self, verb: str, argument: Any, limit_s: float, what: str) -> Any:
        """Calls a function, again if an earlier call may have ended the process; raises as `CallProcess.ask` does."""
        is_new = False
        while True:
            worker = self.take(is_new=is_new)
            try:
                return worker.ask(verb, argument, limit_s, what)
            except ResponseLost:
                if not worker.is_used:
                    raise
            finally:
                self.give(worker)
            is_new = True

    def take(self, *, is_new: bool = False) -> CallProcess:
        """A free process, or a new one; waits where there may be no more. The caller must `give` it back.

        Args:
            is_new: whether the process must have had no call.
        """
        child = self._ready_child()
        began = time.monotonic()
        with self._changed:
            worker = self._free_one(is_new)
            while worker is None and not self._may_start(time.monotonic() - began):
                self._changed.wait(LOOK_S)
                worker = self._free_one(is_new)
            if worker is not None:
                self._busy.add(worker)
                return worker
            self._num_starting += 1
        try:
            worker = self._forked(child)
        finally:
            with self._changed:
                self._num_starting -= 1
                if worker is not None:
                    self._busy.add(worker)
        return worker

    def give(self, worker: CallProcess) -> None:
        """Takes a process back after its call."""
        worker.is_used = True
        worker.asked_at = NEVER
        with self._changed:
            self._busy.discard(worker)
            if not worker.is_gone:
                self._free.append(worker)
            self._changed.notify()

    def close(self) -> None:
        """Ends the processes and what they started."""
        self._is_closed = True
        self._process.close()

    def _free_one(self, is_new: bool) -> CallProcess | None:
        if self._is_closed:
            raise EnvUnavailable(f"{self.what}: its processes are closed")
        while self._free and not is_new:
            worker = self._free.pop()
            if worker.is_ready():
                return worker
        return None

    def _may_start(self, waited_s: float) -> bool:
        """Returns whether a further process would help: calls that wait (for a network) leave cores free."""
        size = len(self._busy) + self._num_starting
        if self._most is not None and size >= self._most:
            return False
        if time.monotonic() - self._looked_at > LOOK_S:
            self._looked_at = time.monotonic()
            self._num_running = sum(worker.is_running() for worker in self._busy)
        return waited_s > PATIENCE_S or self._num_running + self._num_starting < NUM_CORES

    def _forked(self, child: Child) -> CallProcess:
        parent_end, child_end = multiprocessing.Pipe()
        try:
            number = self._prepare(child, "fork", child_end.fileno())
        finally:
            child_end.close()
        return CallProcess(child, parent_end, number)

    def _prepare(self, child: Child, verb: str, handle: int | None = None) -> Any:
        """Asks for what precedes a call; raises EnvUnavailable if it takes too long, since nothing was called."""
        try:
            return child.ask(verb, 0, None, self._start_s, f"{self.what} at its start", handle)
        except DeadlineExceeded as fault:
            raise EnvUnavailable(f"{fault} (env.limits.create_timeout_s)") from None

    def _ready_child(self) -> Child:
        """The child that is forked; one whose modules cannot be forked is replaced by one without them."""
        with self._loading:
            child = self._process.child()
            if child is self._loaded:
                return child
            if self._can_fork:
                self._can_fork, self._most = self._prepare(child, "load")
                if not self._can_fork:
                    child.end("its modules cannot be forked")
                    child = self._process.child()
            # The processes of a child that ended are no more.
            self._free.clear()
            self._busy.clear()
            self._loaded = child
            return child
