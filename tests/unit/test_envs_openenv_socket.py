"""A hostile OpenEnv server at the other end of a session's WebSocket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from xp.envs.base import ProtocolError, UnsafeOrigin
from xp.envs.openenv_socket import Socket, client_of, connect
from xp.envs.target import Target

ANSWER = json.dumps({"type": "observation", "data": {"observation": {}, "reward": 1.0, "done": True}})
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
LIMIT_S = 30.0
"""Nothing waits for it where all is well."""


@asynccontextmanager
async def served(handler: Handler) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_get("/{path:.*}", handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def session(url: str) -> AsyncIterator[Socket]:
    target = Target(url, None, {"X-API-Key": "key"}, {})
    async with client_of(target) as client:
        socket = await connect(client, target, in_time())
        try:
            yield socket
        finally:
            await socket.close()


def in_time() -> float:
    return asyncio.get_running_loop().time() + LIMIT_S


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_of_the_handshake_is_not_followed(status: int) -> None:
    async def play() -> list[str]:
        asked: list[str] = []

        async def other(request: web.Request) -> web.StreamResponse:
            asked.append(request.path)
            return web.Response()

        async with served(other) as elsewhere:

            async def redirecting(_: web.Request) -> web.StreamResponse:
                return web.Response(status=status, headers={"Location": f"{elsewhere}/stolen"})

            async with served(redirecting) as url:
                with pytest.raises(UnsafeOrigin, match=r"a redirect to .*, which was not followed"):
                    async with session(url):
                        pass
        return asked

    assert asyncio.run(play()) == []


def test_a_redirect_to_the_server_itself_is_not_followed_either() -> None:
    async def play() -> list[str]:
        asked: list[str] = []

        async def redirecting(request: web.Request) -> web.StreamResponse:
            asked.append(request.path)
            return web.Response(status=307, headers={"Location": "/again"})

        async with served(redirecting) as url:
            with pytest.raises(ProtocolError, match="not followed"):
                async with session(url):
                    pass
        return asked

    assert asyncio.run(play()) == ["/ws"]
