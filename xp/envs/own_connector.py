"""Connections to servers of this run on this machine, by which no other user gets a request, and thus no key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import aiohttp

from xp.envs.base import UnsafeOrigin
from xp.envs.target import Target, is_taken


class OwnConnector(aiohttp.TCPConnector):
    """Refuses a loopback port on which another user listens, before anything is sent.

    A connection that exists is to the process that accepted it, so only new ones are checked.

    Args:
        fault: makes the exception that is raised, from the server's origin.
        options: those of aiohttp's connector.
    """

    def __init__(self, fault: Callable[[str], Exception], **options: Any) -> None:
        super().__init__(**options)
        self._fault = fault

    async def _create_connection(self, req: Any, traces: Any, timeout: Any) -> Any:
        where = str(req.url.origin())
        self._check(where)
        made = await super()._create_connection(req, traces, timeout)
        try:
            # The port may have been free at the first check, and taken since.
            self._check(where)
        except BaseException:
            made.close()
            raise
        return made

    def _check(self, where: str) -> None:
        if is_taken(where):
            raise self._fault(where)


def connector_to(target: Target, **options: Any) -> aiohttp.TCPConnector:
    """A connector to an environment's server, without a largest number of connections."""
    if target.proof is None:
        return aiohttp.TCPConnector(limit=0, **options)
    return OwnConnector(replaced, limit=0, **options)


def replaced(where: str) -> UnsafeOrigin:
    return UnsafeOrigin(f"{where} is no longer the server that this run started")
