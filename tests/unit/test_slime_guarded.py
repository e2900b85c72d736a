"""Slime's requests to its engines and router, at a port that another user has taken.

The module here has Slime's own lines; tests/trainers/test_slime_doors.py has Slime itself (make test-slime).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest
import requests

from tests.strangers import Stranger, stranger
from xp.backends.slime.worker import guarded
from xp.security import loopback, own_ray


class Engine(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.server.said.append(self.headers["Authorization"])  # type: ignore[attr-defined]
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    own_ray.token_file(tmp_path).write_text("a-token")
    for name, value in own_ray.token_variables(own_ray.token_file(tmp_path)).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv(loopback.ONE_MACHINE, "1")
    found = own_ray.engine_key()
    assert found is not None
    return found


@pytest.fixture
def other() -> Iterator[Stranger]:
    with stranger() as found:
        yield found


@pytest.fixture
def own() -> Iterator[Any]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Engine)
    server.said = []  # type: ignore[attr-defined]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def slimes_engine() -> Any:
    """Slime's module of an engine, guarded."""
    module: Any = ModuleType("sglang_engine")
    module.requests = requests

    def _wait_server_healthy(base_url: str, api_key: str, is_process_alive: Callable[[], bool]) -> None:
        with module.requests.Session() as session:
            while True:
                try:
                    headers = {"Authorization": f"Bearer {api_key}"}
                    if session.get(f"{base_url}/health_generate", headers=headers).status_code == 200:
                        break
                except module.requests.RequestException:
                    pass
                if not is_process_alive():
                    raise ChildProcessError

    module._wait_server_healthy = _wait_server_healthy
    guarded._guard_engine(module)
    return module


@pytest.mark.scorecard(47)
def test_an_engine_whose_port_another_user_has_is_not_up_and_gets_no_key(key: str, other: Stranger, own: Any) -> None:
    module = slimes_engine()
    with pytest.raises(ChildProcessError):
        module._wait_server_healthy(other.url, None, lambda: False)
    for ask in (module.requests.get, module.requests.post, module.requests.delete):
        with pytest.raises(requests.ConnectionError, match="a process of another user listens on"):
            ask(f"{other.url}/health_generate")
    assert other.heard == b""
    url = f"http://127.0.0.1:{own.server_port}"
    module._wait_server_healthy(url, None, lambda: False)
    assert module.requests.get(url).status_code == 200
    assert own.said == [f"Bearer {key}"] * 2


@pytest.mark.scorecard(47)
def test_a_router_whose_port_another_user_has_is_lost_and_gets_no_key(key: str, other: Stranger, own: Any) -> None:
    module: Any = ModuleType("http_utils")
    module._http_client = None

    def init_http_client(_: Any) -> None:
        module._http_client = httpx.AsyncClient(trust_env=False)

    module.init_http_client = init_http_client
    guarded._guard_router_and_rollouts(module)

    async def ask() -> None:
        module.init_http_client(None)
        async with module._http_client as client:
            with pytest.raises(httpx.ConnectError, match="a process of another user listens on"):
                await client.post(f"{other.url}/generate", json={})
            assert (await client.get(f"http://127.0.0.1:{own.server_port}/workers")).status_code == 200

    asyncio.run(ask())
    assert other.heard == b""
    assert own.said == [f"Bearer {key}"]
