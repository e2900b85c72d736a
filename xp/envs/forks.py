"""The child's side of `xp.envs.call_processes`: loads the user's modules once, and forks a process for calls at a time."""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from typing import Any, Final

from xp.envs.rpc_server import RpcServer, serve

END_S: Final = 2.0
"""Seconds that a process may take to end after it closed its connection."""
MOST: Final = "processes"
"""Attribute of a user's function or class whose calls share a state: the largest number of processes for them."""


class InTurn(RpcServer):
    """Answers requests one after the other, on the main thread: signals and event loops work there alone."""

    def _take(self, request: tuple[Any, ...]) -> None:
        self._answer(*request)


class Fork(InTurn):
    """Answers the calls of a forked process."""

    def _take(self, request: tuple[Any, ...]) -> None:
        super()._take(request)
        # An alarm that a call left must not end the next one.
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)


class ForkServer(InTurn):
    """A process that never calls the user's functions itself; its forks do.

    Args:
        connection: connection to the parent.
        handler: answers the calls, in a fork; its method `load` imports and returns the functions.
    """

    def __init__(self, connection: Connection, handler: Any) -> None:
        super().__init__(connection, self)
        self._calls = handler

    def load(self, *_: Any) -> tuple[bool, int | None]:
        """Imports the user's modules.

        Returns:
            Whether a process with them can be forked, and the most processes that a function allows (its attribute
            `processes`); None means any number.
        """
        most = [getattr(function, MOST, None) for function in self._calls.load()]
        torch = sys.modules.get("torch")
        has_device = torch is not None and torch.cuda.is_initialized()
        return (
            threading.active_count() == 1 and not has_device,
            min(filter(None, most), default=None),
        )

    def fork(self, *_: Any) -> int:
        """Starts a process that answers on the connection that comes with the request; returns its id."""
        handle = recv_handle(self._connection)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        process = os.fork()
        if process:
            os.close(handle)
            return process
        try:
            self._connection.close()
            self._work(Connection(handle))
        finally:
            os._exit(0)  # A thread of the user's must not keep the process alive.

    def _work(self, connection: Connection) -> None:
        for number in (signal.SIGTERM, signal.SIGALRM):
            signal.signal(number, signal.SIG_DFL)
        _draw_anew()
        Fork(connection, self._calls).serve()

    def end(self, process: int, now: bool) -> str:
        """Says how a forked process ended, which has closed its connection, or is ended with what it started."""
        ends = time.monotonic() + (0.0 if now else END_S)
        pid, status = os.waitpid(process, os.WNOHANG)
        while pid == 0:
            if time.monotonic() >= ends:
                _kill(process)
            time.sleep(0.01)
            pid, status = os.waitpid(process, os.WNOHANG)
        code = os.waitstatus_to_exitcode(status)
        if code >= 0:
            return f"it ended with code {code}"
        return f"{signal.Signals(-code).name} ended it"


def _kill(process: int) -> None:
    import psutil

    with suppress(psutil.Error):
        for child in psutil.Process(process).children(recursive=True):
            child.kill()
    os.kill(process, signal.SIGKILL)


def _draw_anew() -> None:
    """Gives NumPy and torch numbers of this process's own, as Python's `random` does after a fork."""
    for name, function in (("numpy.random", "seed"), ("torch", "seed")):
        if name in sys.modules:
            getattr(sys.modules[name], function)()


def serve_forks(handler_of: Callable[[Any], Any]) -> None:
    """Main function of the child; see xp.envs.rpc_server.serve."""
    # A killed call takes the rest of a buffer with it.
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    serve(handler_of, ForkServer)


class Loop:
    """The event loop of a process's main thread; one for all calls, since clients of the user's belong to a loop."""

    def __init__(self) -> None:
        self._runner: asyncio.Runner | None = None

    def result(self, result: Any) -> Any:
        """The result of a function that may be asynchronous."""
        if not inspect.isawaitable(result):
            return result

        async def awaited() -> Any:
            return await result

        if self._runner is None:
            self._runner = asyncio.Runner()
        return self._runner.run(awaited())
