"""Runs the user's code in a separate process: an endless loop or too much memory costs an episode, not the run."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from multiprocessing.reduction import send_handle
from pathlib import Path
from typing import Any

from xp.envs import base
from xp.envs.base import DeadlineExceeded, EnvFault, ResponseLost, ToolCrashed
from xp.envs.config import EnvConfig
from xp.envs.pythons import HASH_SEED, executable, path_for
from xp.envs.rpc_server import directory_kind
from xp.errors import ExitCode, XpError
from xp.lib import processes
from xp.lib.atomic import PRIVATE
from xp.lib.secrets.environment import inherited


class ChildProcess:
    """Starts the child with the first request, and again after it ended.

    Args:
        program: module that runs a `xp.envs.rpc_server`.
        config: configuration of the environment.
        environ: variables, of which the child gets those in `xp.lib.secrets.environment` and the declared secrets.
        is_trusted: whether it gets all variables of this process instead, as its other code has them.
    """

    def __init__(
        self,
        program: str,
        config: EnvConfig,
        environ: Mapping[str, str],
        *,
        is_trusted: bool = False,
    ) -> None:
        self._program = program
        self._config = config
        self._environ = environ
        self._is_trusted = is_trusted
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._child: Child | None = None

    def child(self) -> Child:
        """The running child; starts it if there is none."""
        with self._lock:
            if self._child is None or not self._child.is_alive():
                self._child = self._start()
            return self._child

    def _start(self) -> Child:
        return self._start_by(sys.executable)

    def _start_by(self, python: str) -> Child:
        """Starts the child with an interpreter, which must have pydantic and the program's imports."""
        env = dict(os.environ)
        if not self._is_trusted:
            plain, hidden = inherited({**env, **self._environ}, tuple(self._config.secrets))
            env = {**plain, **hidden, **HASH_SEED}
        env["PYTHONPATH"] = path_for(python)
        return Child(self._program, self._config, self._config.limits.memory_gb, env, python)

    def number(self) -> int:
        """A new number for a conversation."""
        return next(self._numbers)

    def close(self, *, now: bool = True) -> None:
        """Ends the child; with `now=False`, one with its own shutdown gets processes.GRACE_S seconds for it."""
        with self._lock:
            child = self._child
            self._child = None
        if child is not None:
            child.end("it is closed", now=now)


class Child:
    """One child process; it is ended when a request times out.

    Args:
        program: see ChildProcess.
        config: what the program's handler is made of.
        memory_gb: limit of the child's memory. None means that there is none.
        env: variables of the child.
        python: the interpreter.
    """

    def __init__(
        self,
        program: str,
        config: EnvConfig | None,
        memory_gb: float | None,
        env: Mapping[str, str],
        python: str,
    ) -> None:
        self._lock = threading.Lock()
        self._ending = threading.Lock()
        self._numbers = itertools.count()
        self._waiting: dict[int, Future[Any]] = {}
        self._gone: str | None = None
        self._connection, child_end = multiprocessing.Pipe()
        self._process = processes.start(
            [executable(python), "-m", program, str(child_end.fileno())],
            env=env,
            pass_fds=(child_end.fileno(),),
        )
        child_end.close()
        self._connection.send(memory_gb)
        self._connection.send(config)
        self._reader = threading.Thread(target=self._read, name="child-replies", daemon=True)
        self._reader.start()
        threading.Thread(target=self._watch, name="child-end", daemon=True).start()

    def is_alive(self) -> bool:
        return self._gone is None

    def ask(
        self,
        verb: str,
        conversation: int,
        argument: Any,
        limit_s: float,
        what: str,
        handle: int | None = None,
    ) -> Any:
        """Sends a request to the child's `xp.envs.rpc_server.RpcServer` and returns the answer.

        Args:
            handle: a descriptor that the child gets with the request.

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
                if handle is not None:
                    send_handle(self._connection, handle, self._process.pid)
            except OSError:
                self._waiting.pop(number)
                raise ResponseLost("its process is gone") from None
        try:
            kind, value = done.result(limit_s)
        except TimeoutError:
            self._waiting.pop(number, None)
            self.end(f"a call took longer than {limit_s:g} s")
            raise DeadlineExceeded(f"{what} took longer than {limit_s:g} s") from None
        return result_of(kind, value, what)

    def end(self, why: str, *, now: bool = True) -> None:
        """Ends the process and what it started, now or within processes.GRACE_S; waiting callers get the reason."""
        with self._ending:
            self._gone = self._gone or why
        processes.end(self._process, now=now)

    def _read(self) -> None:
        while True:
            try:
                number, *answer = self._connection.recv()
            except (EOFError, OSError):
                break
            except Exception as error:
                self.end(f"it sent something other than an answer ({type(error).__name__})")
                break
            done = self._waiting.pop(number, None)
            if done is not None:
                done.set_result(answer)
        with (
            self._ending
        ):  # `end` closes the guard's input, whose number another child may have by then.
            if self._gone is None:
                processes.ask(self._process)

    def _watch(self) -> None:
        """Waits for the process's end and tells the waiting callers."""
        code = self._process.wait()
        self._reader.join()
        with self._lock:
            self._gone = self._gone or f"it ended with code {code}"
            self._connection.close()
        for directory in Path(tempfile.gettempdir()).glob(
            f"{PRIVATE}{directory_kind(self._process.pid)}-*"
        ):
            shutil.rmtree(
                directory, ignore_errors=True
            )  # The killed process could not remove it itself.
        for done in list(self._waiting.values()):
            done.set_result(("gone", self._gone))


def result_of(kind: str, value: Any, what: str) -> Any:
    """The result of a child's answer; raises as `Child.ask` does."""
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
