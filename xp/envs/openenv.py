"""OpenEnv environments at a URL, served by xp or in a container; a task is a row with a reset seed, a step a call."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, Final, TypeVar

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
from xp.envs.image_server import ImageServer
from xp.envs.indexed import IndexedProvider
from xp.envs.local_server import source_version
from xp.envs.loop import current_loop, run
from xp.envs.openenv_core import Core
from xp.envs.openenv_socket import Socket
from xp.envs.process_bound import SLACK_S, ProcessBoundProvider, ServerHandle
from xp.envs.rows import load_rows, messages_of
from xp.envs.target import Target, openenv_target
from xp.errors import XpError
from xp.lib.data_files import Row
from xp.lib.digest import digest_of

T = TypeVar("T")

OBSERVATION: Final = "{observation}"
"""Placeholder in a row's prompt for the environment's observation after the reset."""
RESET: Final = "reset"
"""Column of a row with the reset's arguments other than the seed."""


class OpenEnvProvider(IndexedProvider, ProcessBoundProvider[Core]):
    """See xp.envs.base.Provider.

    Args:
        config: the environment: `target`, `serve` or `image`, and the tasks in `rows`.
        environ: variables with a token for the server; variables of a server that xp starts.
    """

    kind = "openenv"

    def __init__(self, config: EnvConfig, environ: Mapping[str, str]) -> None:
        if config.rows is None:
            raise XpError(f"environment {config.name}: an OpenEnv environment needs rows, the prompts of its tasks")
        super().__init__(config, environ, openenv_target(config, environ) if config.target else None)
        self._rows = load_rows(config.rows, config.columns)[0]

    def version(self) -> str:
        rows = digest_of({split: [dict(row) for row in rows] for split, rows in self._rows.items()})[:16]
        if self._config.serve is not None:
            return f"{source_version(self._config.serve)}, rows {rows}"
        schema = run(self._core().schema(), self._config.limits.create_timeout_s + SLACK_S)
        return f"schema {digest_of(schema)[:16]}, rows {rows}"

    def splits(self) -> tuple[str, ...]:
        return tuple(self._rows)

    def open(self, task: Task) -> OpenEnvSession:
        self._check(task)
        core, limits = self._core(), self._config.limits
        if not core.slots.acquire(timeout=limits.episode_timeout_s):
            raise DeadlineExceeded(f"{self!r}: {limits.max_sessions} sessions are open, and none was closed in time")
        try:
            spec = self._spec(task.split, task.index)
            socket, seen = run(core.open(spec[RESET]), limits.create_timeout_s + SLACK_S)
        except BaseException:
            core.slots.release()
            raise
        return OpenEnvSession(core, socket, opening(spec["row"], seen))

    def _size(self, split: str) -> int:
        return len(self._rows[split]) * self._config.num_seeds

    def _specs(self, split: str, indices: Sequence[int]) -> Sequence[Mapping[str, Any]]:
        return [self._spec(split, index) for index in indices]

    def _spec(self, split: str, index: int) -> dict[str, Any]:
        """Spec of a task: the row, and its reset's arguments. The seeds of a row are consecutive tasks."""
        number, seed = divmod(index, self._config.num_seeds)
        row = dict(self._rows[split][number])
        return {"row": row, RESET: {"seed": seed, **row.get(RESET, {})}}

    def _new_core(self, target: Target) -> Core:
        return Core(target, self._config)

    def _start(self) -> tuple[ServerHandle, Target]:
        config = self._config
        if config.image is not None:
            container = ImageServer(config.image, config.limits.create_timeout_s, config.limits.memory_gb)
            container.start()
            return container, Target(container.url, None, {}, {})
        server = self._serve()
        return server, Target(server.url, None, {"X-API-Key": server.key}, {})


def opening(row: Row, seen: ToolResult) -> list[Message]:
    """The row's prompt, with the observation after the reset instead of `{observation}`."""
    messages = messages_of(row)
    for message in messages:
        message["content"] = message["content"].replace(OBSERVATION, seen.text)
    return messages


class OpenEnvSession:
    """See xp.envs.base.Session; opened by OpenEnvProvider.open."""

    def __init__(self, core: Core, socket: Socket, prompt: list[Message]) -> None:
        self._core = core
        self._socket = socket
        self._prompt = prompt
        self._is_closed = False

    def prompt(self) -> list[Message]:
        return list(self._prompt)

    def tools(self) -> tuple[ToolSpec, ...]:
        return self._run(self._core.tools(self._socket), self._core.limits.create_timeout_s)

    @property
    def takes_answer(self) -> bool:
        return False

    def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        return self._run(self._core.call(self._socket, name, arguments), self._core.limits.call_timeout_s)

    def answer(self, text: str) -> ToolResult:
        del text
        raise ProtocolError("an OpenEnv environment takes no plain answer")

    def close(self) -> None:
        """Returns at once; the session is closed on the server in the background."""
        if self._is_closed or self._core.pid != os.getpid():
            return
        self._is_closed = True
        _start(self._core.end(self._socket))

    def _run(self, work: Coroutine[Any, Any, T], limit_s: float) -> T:
        if self._is_closed or self._core.pid != os.getpid():
            work.close()
            raise SessionLost("the session is closed, or was opened before this process was forked")
        return run(work, limit_s + SLACK_S)


def _start(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run_coroutine_threadsafe(work, current_loop())
