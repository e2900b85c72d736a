"""One session of an OpenEnv server: a WebSocket with one request at a time; a late answer ends the session."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

import aiohttp

from xp.envs.base import DeadlineExceeded, ProtocolError, ResponseLost, SessionLost
from xp.envs.ors_faults import raise_for_status, translated
from xp.envs.ors_replies import MAX_REPLY_BYTES
from xp.envs.target import Target
from xp.envs.wire import parsed

CLOSE_S: Final = 5.0
_ENDS: Final = (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSING, aiohttp.WSMsgType.CLOSED, aiohttp.WSMsgType.ERROR)


def client_of(target: Target) -> aiohttp.ClientSession:
    """HTTP client of one server, without redirects."""

    async def refuse(_session: Any, _context: Any, seen: aiohttp.TraceRequestRedirectParams) -> None:
        seen.response.close()
        await raise_for_status(seen.response, f"{seen.method} /ws", False, target.url)

    trace = aiohttp.TraceConfig()
    trace.on_request_redirect.append(refuse)  # ws_connect has no allow_redirects
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(total=None),
        cookie_jar=aiohttp.DummyCookieJar(),
        trust_env=not target.is_loopback,
        trace_configs=[trace],
        headers=dict(target.headers),
    )


async def connect(client: aiohttp.ClientSession, target: Target, deadline: float) -> Socket:
    """Opens a new session; raises EnvFault."""
    what = f"{target.url}/ws"
    try:
        with translated(what):
            async with asyncio.timeout_at(deadline):
                connection = await client.ws_connect(what, max_msg_size=MAX_REPLY_BYTES, compress=0)
    except TimeoutError:
        raise DeadlineExceeded(f"{what}: no connection in time") from None
    return Socket(connection, what)


class Socket:
    """An open session. Every coroutine runs on the process's loop and raises EnvFault only.

    Frames are read continuously, since reading answers the server's pings. A frame that no request waits for ends the
    session. A request without an answer in time ends it too, since its late answer would be taken for the next
    request's.
    """

    def __init__(self, connection: aiohttp.ClientWebSocketResponse, what: str) -> None:
        self._connection = connection
        self._what = what
        self._answer: asyncio.Future[str | None] | None = None
        """The answer to the latest request; None in it: the connection has ended."""
        self._lost: str | None = None
        self._reader = asyncio.get_running_loop().create_task(self._read())

    async def ask(self, kind: str, data: Mapping[str, Any], deadline: float) -> tuple[str, Any]:
        """Sends one message and waits for its answer; returns type and data.

        Args:
            deadline: end of the wait, on the loop's clock.
        """
        if self._lost is not None:
            raise SessionLost(f"{self._what}: {self._lost}")
        try:
            async with asyncio.timeout_at(deadline):
                text = await self._exchange(kind, data)
        except TimeoutError:
            self._give_up("an earlier call was not answered in time")
            raise DeadlineExceeded(f"{self._what}: no answer to {kind} in time") from None
        except BaseException:
            self._give_up("an earlier call was cut off")
            raise
        reply = await parsed(text, self._what)
        if not isinstance(reply, Mapping) or not isinstance(reply.get("type"), str):
            raise ProtocolError(f"{self._what}: the answer to {kind} has no type")
        return reply["type"], reply.get("data")

    async def close(self) -> None:
        """Closes the session on the server, if it still answers."""
        self._lost = self._lost or "it is closed"
        self._reader.cancel()
        with suppress(Exception):
            async with asyncio.timeout(CLOSE_S):
                await self._connection.send_str('{"type": "close"}')
                await self._connection.close()

    async def _exchange(self, kind: str, data: Mapping[str, Any]) -> str:
        try:
            message = json.dumps({"type": kind, "data": dict(data)}, ensure_ascii=False, allow_nan=False)
        except (ValueError, TypeError, RecursionError) as error:
            raise ProtocolError(f"{self._what}: {kind} cannot be written as JSON ({type(error).__name__})") from None
        self._answer = asyncio.get_running_loop().create_future()
        with suppress(aiohttp.ClientError, ConnectionError):
            # A server that refuses the session sends the reason before it closes the connection.
            await self._connection.send_str(message)
        answer = await self._answer
        if answer is None:
            raise ResponseLost(f"{self._what}: the connection ended before the answer to {kind}")
        return answer

    async def _read(self) -> None:
        while True:
            try:
                message = await self._connection.receive()
            except (aiohttp.ClientError, ConnectionError):
                break
            if message.type in _ENDS:
                break
            if self._answer is None or self._answer.done():
                self._give_up("the server spoke without being asked")
                return
            if message.type is aiohttp.WSMsgType.TEXT:
                self._answer.set_result(message.data)
        if self._answer is None or self._answer.done():
            self._lost = self._lost or "the connection has ended"
        else:
            self._answer.set_result(None)

    def _give_up(self, why: str) -> None:
        self._lost = self._lost or why
        _closing.add(ending := asyncio.get_running_loop().create_task(self.close()))
        ending.add_done_callback(_closing.discard)


_closing: set[asyncio.Task[None]] = set()
"""References to background tasks, which would be garbage-collected otherwise."""
