"""Base of providers of servers: the connection, a server that is started on demand, and shutdown."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, ClassVar, Final, Generic, Protocol, TypeVar

from xp.envs.base import DeadlineExceeded, EnvUnavailable, SessionLost
from xp.envs.config import EnvConfig
from xp.envs.local_server import LocalServer
from xp.envs.loop import current_loop, run
from xp.envs.retry import AtCapacity
from xp.envs.server_events import ServerEvents
from xp.envs.target import Target, override_values
from xp.envs.transport import Transport

SLACK_S: Final = 30.0
"""Seconds that a caller waits beyond a request's own deadline, in case the event loop is blocked."""
CLOSE_S: Final = 60.0


class ServerHandle(Protocol):
    """A server that a provider started and must stop."""

    def stop(self) -> None: ...


class SessionSlots:
    """Slots of a provider's sessions; `limit` may be lowered while they are taken."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.num_taken = 0
        self._changed = threading.Condition()

    def acquire(self, timeout: float) -> bool:
        """Takes a slot within a number of seconds; returns False without one."""
        with self._changed:
            is_free = self._changed.wait_for(lambda: self.num_taken < self.limit, timeout)
            self.num_taken += is_free
            return is_free

    def release(self) -> None:
        with self._changed:
            self.num_taken -= 1
            self._changed.notify()


class ServerCore(ABC):
    """State of a provider: its connection, and a slot for each open session."""

    def __init__(self, target: Target, config: EnvConfig) -> None:
        self.limits = config.limits
        self.slots = SessionSlots(config.limits.max_sessions)
        self.transport = Transport(target)

    @abstractmethod
    async def close(self) -> None:
        """Closes all sessions and the connection."""


C = TypeVar("C", bound=ServerCore)
T = TypeVar("T")


class ServerSession(ABC, Generic[C]):
    """Part of an xp.envs.base.Session."""

    def __init__(self, core: C) -> None:
        self._core = core
        self._is_closed = False

    @abstractmethod
    async def _end(self) -> None:
        """Closes the session on the server, and frees its slot."""

    def close(self) -> None:
        """Returns at once; the session is closed on the server in the background, at the latest in the provider's
        close."""
        if not self._is_closed:
            self._is_closed = True
            asyncio.run_coroutine_threadsafe(self._end(), current_loop())

    def _run(self, work: Coroutine[Any, Any, T], limit_s: float) -> T:
        if self._is_closed:
            work.close()
            raise SessionLost("the session is closed")
        return run(work, limit_s + SLACK_S)


class ProcessBoundProvider(ABC, Generic[C]):
    """Part of an xp.envs.base.Provider, whose server is reached with the first session.

    Args:
        config: the environment.
        environ: variables with the key and the secrets; variables of a server that is started here.
        target: the server. None means that it is started on demand.
    """

    kind: ClassVar[str] = "openreward"
    """Protocol of a server that is started here (xp.envs.serve)."""

    def __init__(
        self, config: EnvConfig, environ: Mapping[str, str], target: Target | None
    ) -> None:
        self._config = config
        self._environ = dict(environ)
        self._lock = threading.Lock()
        self._server: ServerHandle | None = None
        self._target = target
        self._reached: C | None = None
        self._is_closed = False
        _providers.add(self)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._config.name!r})"

    def close(self) -> None:
        with self._lock:
            core = self._reached
            server = self._server
            self._server = None
            self._is_closed = True
        if core is not None:
            run(core.close(), CLOSE_S)
        if server is not None:
            server.stop()

    @abstractmethod
    def _new_core(self, target: Target) -> C:
        """Makes the state of a connection to the server."""

    @abstractmethod
    def _start(self) -> tuple[ServerHandle, Target]:
        """Starts the configured server."""

    def _core(self) -> C:
        """The connection to the server, which is started if needed; raises EnvUnavailable if the provider is closed."""
        with self._lock:
            if self._is_closed:
                raise EnvUnavailable(f"{self!r} is closed")
            if self._target is None:
                self._server, self._target = self._start()
            if self._reached is None:
                self._reached = self._new_core(self._target)
            return self._reached

    def _in_slot(self, core: C, opening: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Opens a session, after a wait for a free slot; closing the session frees the slot."""
        limits = self._config.limits
        deadline = time.monotonic() + limits.episode_timeout_s
        while True:
            left_s = deadline - time.monotonic()
            if left_s <= 0 or not core.slots.acquire(left_s):
                break
            try:
                return run(opening(), limits.create_timeout_s + SLACK_S)
            except BaseException as error:
                core.slots.release()
                if not isinstance(error, AtCapacity):
                    raise
        raise DeadlineExceeded(
            f"{self!r}: {core.slots.limit} sessions are open, and none was closed in time"
        )

    def _serve(self) -> LocalServer:
        """Starts the configuration's `serve`; the provider's close ends the sessions first, then the server."""
        config = self._config
        overrides = override_values(self._config, self._environ)
        hidden = [self._environ.get(name, "") for name in config.secrets] + list(overrides.values())
        assert config.serve is not None  # EnvConfig: one of target, serve and image
        server = LocalServer(
            config.serve,
            self._environ,
            report=ServerEvents(config.name, self._environ, hidden).add,
            call_timeout_s=config.limits.call_timeout_s,
            kind=self.kind,
            python=config.python,
            memory_gb=config.limits.memory_gb,
            overrides=overrides,
        )
        server.start()
        atexit.unregister(server.stop)
        server.watch()
        return server


_providers: weakref.WeakSet[ProcessBoundProvider[Any]] = weakref.WeakSet()
os.register_at_fork(after_in_child=_providers.clear)


@atexit.register
def close_all() -> None:
    """Closes remaining sessions and servers at the end of the process; a forked child does not close its parent's."""
    for provider in list(_providers):
        if not provider._is_closed:
            provider.close()
