"""Servers of engines answer nobody without the run's key, and the trainers' clients send it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest
import requests

from tests.support.http_server import HttpServer, http_server
from xp.backends.slime.worker import engine_key as slime_key
from xp.lib import loopback, private_ray
from xp.worker.engines import key_check


@pytest.mark.parametrize(
    ("path", "authorization", "status"),
    [
        ("/health", None, 200),
        ("/update_weights", None, 401),
        ("/update_weights", "Bearer wrong", 401),
        ("/update_weights", "Bearer the-key", 200),
    ],
)
def test_every_path_but_the_health_check_requires_the_key(
    path: str, authorization: str | None, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(key_check.KEY, "the-key")
    sent: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        del scope, receive
        await send({"status": 200})

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        raise AssertionError("the body is not read")

    headers = [] if authorization is None else [(b"authorization", authorization.encode())]
    asyncio.run(
        key_check.EngineKeyCheck(app)(
            {"type": "http", "path": path, "headers": headers}, receive, send
        )
    )
    assert sent[0]["status"] == status


def test_a_process_without_a_key_serves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (key_check.KEY, loopback.ONE_MACHINE):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(RuntimeError, match="has no key of engines"):
        key_check.EngineKeyCheck(lambda *_: None)  # type: ignore[arg-type, return-value]


@pytest.fixture
def engine() -> Iterator[HttpServer]:
    with http_server() as server:
        yield server


@pytest.fixture
def key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Key of a process of the run's own Ray."""
    private_ray.token_file(tmp_path).write_text("a-token")
    for name, value in private_ray.token_variables(private_ray.token_file(tmp_path)).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv(loopback.ONE_MACHINE, "1")
    monkeypatch.delenv(key_check.KEY, raising=False)
    return key_check.engine_key()


def test_slimes_engine_sends_the_key_also_while_it_waits(key: str, engine: HttpServer) -> None:
    """The module has Slime's own lines; tests/engines/test_slime.py has Slime itself (make test-slime)."""
    module: Any = ModuleType("sglang_engine")
    module.requests = requests

    def _wait_server_healthy(
        base_url: str, api_key: str | None, is_process_alive: Callable[[], bool]
    ) -> None:
        with module.requests.Session() as session:
            session.get(
                f"{base_url}/health_generate", headers={"Authorization": f"Bearer {api_key}"}
            )
        assert is_process_alive()

    module._wait_server_healthy = _wait_server_healthy
    slime_key._key_of_engine(module)
    url = engine.url
    module._wait_server_healthy(url, None, lambda: True)
    for ask in (module.requests.get, module.requests.post, module.requests.delete):
        assert ask(url).status_code == 200
    assert [one.headers["authorization"] for one in engine.requests] == [f"Bearer {key}"] * 4
    assert module.requests.RequestException is requests.RequestException


def test_slimes_rollouts_send_the_key(key: str, engine: HttpServer) -> None:
    module: Any = ModuleType("http_utils")
    module._http_client = None

    def init_http_client(_: Any) -> None:
        module._http_client = httpx.AsyncClient(trust_env=False)

    module.init_http_client = init_http_client
    slime_key._key_of_router_and_rollouts(module)

    async def ask() -> None:
        module.init_http_client(None)
        async with module._http_client as client:
            assert (await client.get(f"{engine.url}/workers")).status_code == 200

    asyncio.run(ask())
    assert [one.headers["authorization"] for one in engine.requests] == [f"Bearer {key}"]
