"""Requests about an ORS environment: its version, splits and tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Final

from xp.envs import wire
from xp.envs.base import NotOffered, ProtocolError, SessionLost
from xp.envs.config import EnvConfig
from xp.envs.transport import Repeat, Transport, deadline_in

PAGE: Final = 512
"""Number of tasks in one request."""
PARALLEL: Final = 16
MAX_GAP: Final = 8
"""Largest number of tasks that are fetched in vain between two that are needed."""


BorrowedSession = Callable[[float], AbstractAsyncContextManager[str | None]]
"""Context manager of a session's id for one request, until a deadline; None if the server needs no session."""


def request_ranges(indices: Sequence[int]) -> list[range]:
    """Ranges that have all indices, each for one request."""
    parts: list[range] = []
    for index in sorted(set(indices)):
        last = parts[-1] if parts else range(0)
        if parts and index - last.stop <= MAX_GAP and index - last.start < PAGE:
            parts[-1] = range(last.start, index + 1)
        else:
            parts.append(range(index, index + 1))
    return parts


class Catalog:
    """Requests about one environment; every coroutine runs on the process's loop and raises EnvFault only.

    Args:
        transport: connection to the server.
        session: see BorrowedSession.
        config: the environment.
    """

    def __init__(self, transport: Transport, session: BorrowedSession, config: EnvConfig) -> None:
        self._transport = transport
        self._session = session
        self._config = config
        self._env: str | None = None

    async def env(self) -> str:
        """The environment's path segment, requested once."""
        if self._env is None:
            variant = (self._config.variant or "").lower()
            self._env = variant or await self._find_env()
        return self._env

    async def version(self) -> str:
        reply = wire.mapping(await self._json("GET", "/version"), "GET /version")
        return f"openreward {reply.get('version')} {reply.get('build_sha') or ''}".strip()

    async def splits(self) -> tuple[str, ...]:
        path = f"/{await self.env()}/splits"
        names = wire.listed(await self._json("GET", path), f"GET {path}", "the list of splits")
        return tuple(
            wire.string(item.get("name") if isinstance(item, dict) else item, path)
            for item in names
        )

    async def num_tasks(self, split: str) -> int:
        path = f"/{await self.env()}/num_tasks"
        reply = await self._json("POST", path, {"split": split})
        return wire.count(reply.get("num_tasks") if isinstance(reply, dict) else reply, path)

    async def specs(self, split: str, indices: Sequence[int]) -> list[Mapping[str, Any]]:
        """The tasks' specs, in the order of `indices`.

        Raises:
            ValueError: an index is outside the split.
        """
        if not indices:
            return []
        total = await self.num_tasks(split)
        outside = [index for index in indices if not 0 <= index < total]
        if outside:
            raise ValueError(
                f"{self._config.name}: split {split} has {total} tasks; {outside[0]} is not one of them"
            )
        slots = asyncio.Semaphore(PARALLEL)

        async def fetched(part: range) -> Mapping[int, Mapping[str, Any]]:
            async with slots:
                return await self._range(split, part)

        by_index: dict[int, Mapping[str, Any]] = {}
        for specs in await asyncio.gather(*map(fetched, request_ranges(indices))):
            by_index.update(specs)
        return [by_index[index] for index in indices]

    async def listed(self, split: str) -> list[Mapping[str, Any]] | None:
        """The specs of all tasks of a split; None if the environment only counts them."""
        path = f"/{await self.env()}/tasks"
        try:
            reply = await self._json("POST", path, {"split": split})
        except (NotOffered, SessionLost):
            return None
        return wire.task_specs(reply, f"POST {path}")

    async def _range(self, split: str, part: range) -> dict[int, Mapping[str, Any]]:
        path = f"/{await self.env()}/task_range"
        bounds = {"split": split, "start": part.start, "stop": part.stop}
        specs = wire.task_specs(await self._json("POST", path, bounds), f"POST {path}")
        if len(specs) != len(part):
            raise ProtocolError(f"POST {path}: not the {len(part)} tasks that were asked for")
        return dict(zip(part, specs, strict=True))

    async def _find_env(self) -> str:
        """Name of the server's only environment, or of the one with the name of the target's last part."""
        try:
            reply = await self._json("GET", "/list_environments")
        except NotOffered as fault:
            raise NotOffered(
                f"{fault}: the server does not list its environments; name one by env.variant"
            ) from None
        if not isinstance(reply, list) or not reply:
            raise ProtocolError("GET /list_environments: not a list of names")
        names = [wire.string(name, "GET /list_environments") for name in reply]
        last = (self._config.target or self._config.name).rstrip("/").rpartition("/")[2].lower()
        if len(names) == 1:
            return names[0]
        if last not in names:
            raise ProtocolError(f"the server has {', '.join(names)}: say which by `variant`")
        return last

    async def _json(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        deadline = deadline_in(self._config.limits.create_timeout_s)
        async with self._session(deadline) as sid:
            text = await self._transport.request(
                method, path, deadline=deadline, body=body, sid=sid, repeat=Repeat.QUESTION
            )
        return wire.parse_json(text, f"{method} {path}")
