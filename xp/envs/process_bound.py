"""Base of providers of servers: state per process, a server that is started on demand, and shutdown."""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Final, Generic, Protocol, TypeVar

from xp.envs.base import EnvUnavailable
from xp.envs.config import EnvConfig
from xp.envs.local_server import LocalServer
from xp.envs.loop import run
from xp.envs.target import Target

LOG_VARIABLE: Final = "XP_SERVE_LOG"
"""Variable with the file for the output of servers that a provider starts; unset: output is dropped."""
SLACK_S: Final = 30.0
"""Seconds that a caller waits beyond a request's own deadline, in case the event loop is blocked."""
CLOSE_S: Final = 60.0


class ServerHandle(Protocol):
    """A server that a provider started and must stop."""

    def stop(self) -> None: ...


class Closable(Protocol):
    """State of a provider in one process."""

    async def close(self) -> None: ...


C = TypeVar("C", bound=Closable)


class ProcessBoundProvider(ABC, Generic[C]):
    """Part of an xp.envs.base.Provider: after a fork, only its configuration is used, not its sockets and sessions.

    Args:
        config: the environment.
        environ: variables with the key and the secrets; variables of a server that is started here.
        target: the server; None: it is started on demand.
    """

    kind: ClassVar[str] = "openreward"
    """Protocol of a server that is started here (xp.envs.serve)."""

    def __init__(self, config: EnvConfig, environ: Mapping[str, str], target: Target | None) -> None:
        self._config = config
        self._environ = dict(environ)
        self._lock = threading.Lock()
        self._server: ServerHandle | None = None
        self._target = target
        self._cores: dict[int, C] = {}
        self._is_closed = False
        _providers.add(self)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._config.name!r})"

    def close(self) -> None:
        with self._lock:
            core = self._cores.get(os.getpid())
            server, self._server = self._server, None
            self._is_closed = True
        if core is not None:
            run(core.close(), CLOSE_S)
        if server is not None:
            server.stop()

    @abstractmethod
    def _new_core(self, target: Target) -> C:
        """Makes the state for this process."""

    @abstractmethod
    def _start(self) -> tuple[ServerHandle, Target]:
        """Starts the configured server."""

    def _core(self) -> C:
        """Returns this process's state; raises EnvUnavailable if the provider is closed."""
        if self._is_closed:
            raise EnvUnavailable(f"{self!r} is closed")
        core = self._cores.get(os.getpid())
        if core is None:
            core = self._cores.setdefault(os.getpid(), self._new_core(self._reach()))
        return core

    def _reach(self) -> Target:
        with self._lock:
            if self._target is None:
                self._server, self._target = self._start()
        return self._target

    def _serve(self) -> LocalServer:
        """Starts the configuration's `serve`; the provider's close ends the sessions first, then the server."""
        config, log = self._config, self._environ.get(LOG_VARIABLE)
        assert config.serve is not None  # EnvConfig: one of target, serve and image
        server = LocalServer(
            config.serve,
            self._environ,
            Path(log) if log else None,
            kind=self.kind,
            python=config.python,
            memory_gb=config.limits.memory_gb,
        )
        server.start()
        atexit.unregister(server.stop)
        server.watch(config.limits.call_timeout_s)
        return server


_providers: weakref.WeakSet[ProcessBoundProvider[Any]] = weakref.WeakSet()


@atexit.register
def close_all() -> None:
    """Closes remaining sessions and servers at the end of the process; a forked child does not close its parent's."""
    for provider in list(_providers):
        if not provider._is_closed:
            provider.close()
