"""Runs the user's code in a separate process: an endless loop or too much memory costs an episode, not the run."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import pickle
import shutil
import socket
import sys
import tempfile
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from xp.envs import base
from xp.envs.base import DeadlineExceeded, EnvFault, ProtocolError, ResponseLost, ToolCrashed
from xp.envs.config import EnvConfig
from xp.envs.pythons import executable, path_for
from xp.errors import ExitCode, XpError
from xp.lib import processes
from xp.lib.private_directory import PREFIX
from xp.secrets.environment import inherited


def place_kind(pid: int) -> str:
    """Kind of the directory of a child's temporary files, by its guard's id; see xp.lib.private_directory."""
    return f"host-{pid}"


class ChildProcess:
    """Starts the child with the first request, and again after it ended.

    Args:
        program: module that runs a `xp.envs.rpc_server`.
        config: configuration of the environment.
        environ: variables, of which the child gets those in `xp.secrets.environment` and the declared secrets.
        python: the interpreter; it must have pydantic and the program's imports.
    """

    def __init__(
        self, program: str, config: EnvConfig, environ: Mapping[str, str], python: str = sys.executable
    ) -> None:
        self._program, self._config, self._environ, self._python = program, config, environ, python
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._child: Child | None = None

    def child(self) -> Child:
        """The running child; starts it if there is none."""
        with self._lock:
            if self._child is None or not self._child.is_alive():
                self._child = Child(self._program, self._config, self._environ, self._python)
            return self._child

    def number(self) -> int:
        """A new number for a conversation."""
        return next(self._numbers)

    def close(self, *, now: bool = True) -> None:
        """Ends the child; with `now=False`, one with its own shutdown gets processes.GRACE_S seconds for it."""
        with self._lock:
            child, self._child = self._child, None
        if child is not None:
            child.end("it is closed", now=now)


class Child:
    """One child process; it is ended when a request times out."""

    def __init__(self, program: str, config: EnvConfig, environ: Mapping[str, str], python: str) -> None:
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._waiting: dict[int, Future[Any]] = {}
        self._gone: str | None = None
        self._connection, theirs = multiprocessing.Pipe()
        self._process = processes.start(
            [executable(python), "-m", program, str(theirs.fileno())],
            env=_environ(environ, config.secrets, python),
            pass_fds=(theirs.fileno(),),
        )
        theirs.close()
        self._connection.send(config)
        self._reader = threading.Thread(target=self._read, name="child-replies", daemon=True)
        self._reader.start()
        threading.Thread(target=self._watch, name="child-end", daemon=True).start()

    def is_alive(self) -> bool:
        return self._gone is None and self._owner == os.getpid()

    def ask(self, verb: str, conversation: int, argument: Any, limit_s: float, what: str) -> Any:
        """Sends a request to the child's `xp.envs.rpc_server.RpcServer` and returns the answer.

        Raises:
            DeadlineExceeded: the answer took longer than `limit_s`; the process is ended.
            ToolCrashed: the user's code raised an exception.
            ResponseLost: the process has ended.
        """
        done: Future[Any] = Future()
        with self._lock:
            if self._gone is not None:
                raise ResponseLost(f"its process is gone: {self._gone}")
            number = next(self._numbers)
            self._waiting[number] = done
            try:
                self._connection.send((number, verb, conversation, argument))
            except OSError:
                self._waiting.pop(number)
                raise ResponseLost("its process is gone") from None
        try:
            kind, value = done.result(limit_s)
        except TimeoutError:
            self._waiting.pop(number, None)
            self.end(f"a call took longer than {limit_s:g} s")
            raise DeadlineExceeded(f"{what} took longer than {limit_s:g} s") from None
        return _result(kind, value, what)

    def end(self, why: str, *, now: bool = True) -> None:
        """Ends the process and what it started, now or within processes.GRACE_S; waiting callers get the reason."""
        self._gone = self._gone or why
        if self._owner == os.getpid():
            processes.end(self._process, now=now)

    def _read(self) -> None:
        while True:
            try:
                number, kind, packed = self._connection.recv()
            except (EOFError, OSError):
                break
            except Exception as error:
                self.end(f"something else than its answers came from it ({type(error).__name__})")
                break
            if (done := self._waiting.pop(number, None)) is not None:
                done.set_result(_unpacked(kind, packed))
        processes.ask(self._process)

    def _watch(self) -> None:
        """Waits for the process's end and tells the waiting callers."""
        code = self._process.wait()
        _hang_up(self._connection)  # A process that the guard could not end may still hold the other end.
        self._reader.join()
        with self._lock:
            self._gone = self._gone or f"it ended with code {code}"
            self._connection.close()
        for place in Path(tempfile.gettempdir()).glob(f"{PREFIX}{place_kind(self._process.pid)}-*"):
            shutil.rmtree(place, ignore_errors=True)  # The killed process could not remove it itself.
        for done in list(self._waiting.values()):
            done.set_result(("gone", self._gone))


def _hang_up(connection: Connection) -> None:
    """Ends a connection for its reader, after the answers that have arrived."""
    with suppress(OSError), socket.socket(fileno=os.dup(connection.fileno())) as end:
        end.shutdown(socket.SHUT_RDWR)


def _unpacked(kind: str, packed: bytes) -> tuple[str, Any]:
    """An answer's kind and value; a value of a class that this process lacks becomes a fault."""
    try:
        return kind, pickle.loads(packed)
    except Exception as error:
        return "fault", (ProtocolError.__name__, f"its answer cannot be read: {type(error).__name__}: {error}")


def _result(kind: str, value: Any, what: str) -> Any:
    match kind:
        case "ok":
            return value
        case "xp":
            raise XpError(value[0], ExitCode(value[1]))
        case "fault":
            fault: type[EnvFault] = getattr(base, value[0], base.ProtocolError)
            raise fault(value[1])
        case "gone":
            raise ResponseLost(f"{what}: its process is gone: {value}")
        case _:
            raise ToolCrashed(f"{what} {value}")


def _environ(environ: Mapping[str, str], secrets: tuple[str, ...], python: str) -> dict[str, str]:
    plain, hidden = inherited({**os.environ, **environ}, secrets)
    return {**plain, **hidden, "PYTHONPATH": path_for(python)}
