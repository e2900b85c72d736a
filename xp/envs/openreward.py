"""Environments of the Open Reward Standard, in the catalog, at a URL or served by xp."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from xp.envs.base import (
    DeadlineExceeded,
    Message,
    ProtocolError,
    SessionLost,
    Task,
    ToolResult,
    ToolSpec,
)
from xp.envs.config import EnvConfig
from xp.envs.local_server import LocalServer, source_version
from xp.envs.loop import current_loop, run
from xp.envs.ors_catalog import Catalog
from xp.envs.ors_http import Transport
from xp.envs.ors_session import Live, Sessions, Terminal, checked_index
from xp.envs.process_bound import SLACK_S, ProcessBoundProvider
from xp.envs.target import Target, remote_target, served_target

T = TypeVar("T")


class OpenRewardProvider(ProcessBoundProvider["_Core"]):
    """See xp.envs.base.Provider.

    Args:
        config: the environment, with `target` or `serve`.
        environ: variables with the API key and the secrets.
    """

    def __init__(self, config: EnvConfig, environ: Mapping[str, str]) -> None:
        super().__init__(config, environ, None if config.serve else remote_target(config, environ))

    @property
    def server(self) -> LocalServer | None:
        """The server that this provider has started for `serve`; None before the first request."""
        return self._server if isinstance(self._server, LocalServer) else None

    def version(self) -> str:
        if self._config.serve is not None:
            return source_version(self._config.serve)
        return self._ask(lambda catalog: catalog.version())

    def splits(self) -> tuple[str, ...]:
        return self._ask(lambda catalog: catalog.splits())

    def num_tasks(self, split: str) -> int:
        return self._ask(lambda catalog: catalog.num_tasks(split))

    def tasks(self, split: str, indices: Sequence[int]) -> list[Task]:
        """See xp.envs.base.Provider; raises ValueError for an index outside the split."""
        specs = self._ask(lambda catalog: catalog.specs(split, indices))
        return [Task(self._config.name, split, index, spec) for index, spec in zip(indices, specs, strict=True)]

    def listed(self, split: str) -> list[Task] | None:
        """See xp.envs.base.Lister."""
        specs = self._ask(lambda catalog: catalog.listed(split))
        if specs is None:
            return None
        return [Task(self._config.name, split, index, spec) for index, spec in enumerate(specs)]

    def open(self, task: Task) -> OpenRewardSession:
        """Opens a session, after a wait for a free slot; closing the session frees the slot."""
        core, limits = self._core(), self._config.limits
        checked_index(task)
        if not core.slots.acquire(timeout=limits.episode_timeout_s):
            raise DeadlineExceeded(f"{self!r}: {limits.max_sessions} sessions are open, and none was closed in time")
        return OpenRewardSession(core, run(core.open(task), limits.create_timeout_s + SLACK_S))

    async def describe(self, task: Task) -> tuple[list[Message], tuple[ToolSpec, ...]]:
        """See xp.envs.base.Describer."""
        checked_index(task)
        return await self._core().describe(task)

    def _ask(self, question: Callable[[Catalog], Coroutine[Any, Any, T]]) -> T:
        core = self._core()
        return run(question(core.catalog), self._config.limits.create_timeout_s + SLACK_S)

    def _new_core(self, target: Target) -> _Core:
        return _Core(target, self._config)

    def _start(self) -> tuple[LocalServer, Target]:
        server = self._serve()
        return server, served_target(server.url, server.key, self._config, self._environ)


class _Core:
    """State of a provider in one process."""

    def __init__(self, target: Target, config: EnvConfig) -> None:
        self.pid = os.getpid()
        self.limits = config.limits
        self.slots = threading.Semaphore(config.limits.max_sessions)
        transport = Transport(target, config.limits.max_attempts)
        self.sessions = Sessions(transport, config.limits)
        self.catalog = Catalog(transport, self.sessions, config)
        self._transport = transport

    async def open(self, task: Task) -> Live:
        """Opens a session in a slot; the slot is freed if that fails."""
        try:
            return await self.sessions.open(await self.catalog.env(), task)
        except BaseException:
            self.slots.release()
            raise

    async def describe(self, task: Task) -> tuple[list[Message], tuple[ToolSpec, ...]]:
        live = await self.sessions.open(await self.catalog.env(), task)
        try:
            tools, _ = await self.sessions.tools(live)
        finally:
            await asyncio.shield(self.sessions.close_soon(live))
        return live.prompt, tools

    def end_session(self, live: Live) -> None:
        """Closes a session and frees its slot; must be called on the loop's thread."""
        ending = self.sessions.close_soon(live)
        ending.add_done_callback(lambda _: self.slots.release())

    async def close(self) -> None:
        await self.sessions.drain()
        await self._transport.close()


class OpenRewardSession:
    """See xp.envs.base.Session; opened by OpenRewardProvider.open."""

    def __init__(self, core: _Core, live: Live) -> None:
        self._core = core
        self._live = live
        self._is_closed = False

    def prompt(self) -> list[Message]:
        return list(self._live.prompt)

    def tools(self) -> tuple[ToolSpec, ...]:
        return self._listing()[0]

    @property
    def takes_answer(self) -> bool:
        return self._listing()[1] is not None

    def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        self._check_process()
        return run(self._core.sessions.call(self._live, name, arguments), self._core.limits.call_timeout_s + SLACK_S)

    def answer(self, text: str) -> ToolResult:
        terminal = self._listing()[1]
        if terminal is None:
            raise ProtocolError("the environment has no terminal tool to take an answer")
        name, argument = terminal
        return self.call(name, {} if argument is None else {argument: text})

    def close(self) -> None:
        """Returns at once; the session is closed on the server in the background, at the latest in the provider's
        close."""
        if self._is_closed or self._core.pid != os.getpid():
            return
        self._is_closed = True
        current_loop().call_soon_threadsafe(self._core.end_session, self._live)

    def _listing(self) -> tuple[tuple[ToolSpec, ...], Terminal | None]:
        self._check_process()
        return run(self._core.sessions.tools(self._live), self._core.limits.create_timeout_s + SLACK_S)

    def _check_process(self) -> None:
        if self._core.pid != os.getpid():
            raise SessionLost("the session was opened before this process was forked")
