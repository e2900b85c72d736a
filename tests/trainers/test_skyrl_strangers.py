"""SkyRL's client and router, at a port of 127.0.0.1 that another user has taken."""

from __future__ import annotations

import asyncio
import pickle
from pathlib import Path

import pytest

pytest.importorskip("skyrl", reason="SkyRL's own code: make test-skyrl")

import aiohttp
from aiohttp import web

import tests.trainers.skyrl_parts  # noqa: F401 - it makes SkyRL importable
from tests.strangers import stranger
from xp.backends.skyrl.worker import guarded
from xp.security import loopback, own_ray


@pytest.fixture
def key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    own_ray.token_file(tmp_path).write_text("a-token")
    for name, value in own_ray.variables({}, tmp_path).items():
        monkeypatch.setenv(name, value)
    found = own_ray.engine_key()
    assert found is not None
    return found


def client_of(url: str) -> guarded.EngineClient:
    made = guarded.EngineClient(proxy_url=url, server_urls=[url], data_parallel_size=1)
    return pickle.loads(pickle.dumps(made))  # type: ignore[no-any-return]


@pytest.mark.scorecard(47)
def test_another_user_at_the_port_of_an_engine_or_the_router_gets_no_key(key: str) -> None:
    async def ask(url: str) -> None:
        client = client_of(url)
        try:
            with pytest.raises(aiohttp.ClientConnectionError, match="a process of another user listens on"):
                await client._call_server(url, "/sleep", {})
            with pytest.raises(aiohttp.ClientConnectionError, match="a process of another user listens on"):
                await client._post(f"{url}/inference/v1/generate", {})
        finally:
            await client.teardown()

    with stranger() as other:
        asyncio.run(ask(other.url))
        assert not guarded._is_up(f"{other.url}/health")
        assert other.heard == b""
    del key


def test_an_engine_of_this_user_gets_the_key_from_the_first_requests_on(key: str) -> None:
    said: list[str | None] = []

    async def answer(request: web.Request) -> web.Response:
        said.append(request.headers.get("Authorization"))
        return web.json_response({})

    async def ask() -> None:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, loopback.HOST, 0)
        await site.start()
        url = f"http://{loopback.HOST}:{runner.addresses[0][1]}"
        client = client_of(url)
        try:
            await asyncio.gather(*(client._call_server(url, "/sleep", {}) for _ in range(4)))
            session = await client._get_session()
            assert session is await client._get_session()
            assert await asyncio.to_thread(guarded._is_up, f"{url}/health")
        finally:
            await client.teardown()
            await runner.cleanup()

    asyncio.run(ask())
    assert said == [f"Bearer {key}"] * 5
