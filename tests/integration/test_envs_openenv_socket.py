"""A hostile OpenEnv server at the other end of a session's WebSocket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from xp.contrib.contracts.jobs import DEADLINE_S
from xp.envs.base import ResponseLost, UnsafeOrigin
from xp.envs.openenv import Socket, client_of, connect
from xp.envs.target import Target

ANSWER = json.dumps(
    {"type": "observation", "data": {"observation": {}, "reward": 1.0, "done": True}}
)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


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
    return asyncio.get_running_loop().time() + DEADLINE_S


def test_a_redirect_of_the_handshake_is_not_followed() -> None:
    status = 307

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


def test_an_answer_and_the_end_of_the_connection_are_told_apart() -> None:
    async def play() -> None:
        async def dropping(request: web.Request) -> web.StreamResponse:
            socket = web.WebSocketResponse()
            await socket.prepare(request)
            await socket.receive()
            await socket.send_str(ANSWER)
            await socket.receive()
            return socket

        async with served(dropping) as url, session(url) as own:
            assert (await own.ask("reset", {}, in_time()))[1]["reward"] == 1.0
            with pytest.raises(ResponseLost, match="before the answer to step"):
                await own.ask("step", {}, in_time())

    asyncio.run(play())
