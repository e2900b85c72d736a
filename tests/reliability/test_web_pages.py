"""Web pages in a browser of this machine, held off the real servers that xp starts; each request here has the key."""

from __future__ import annotations

import asyncio
import http.client
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.ors_server import COUNTER
from xp.envs.local_server import LocalServer
from xp.security.web_origin import OwnOrigin

pytestmark = [pytest.mark.reliability, pytest.mark.scorecard(46)]
OPENENV = "tests.envs_under_test.openenv_counter:Counter"
PATHS = {"openreward": "/list_environments", "openenv": "/schema"}
HANDSHAKE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
}
OWN_HOSTS = ["127.0.0.1:PORT", "localhost:PORT", "LOCALHOST:PORT"]
FOREIGN_HOSTS: list[tuple[str, ...]] = [
    ("rebound.example:PORT",),
    ("rebound.example",),
    ("127.0.0.1",),
    ("127.0.0.1:1",),
    ("127.0.0.1.rebound.example:PORT",),
    ("localhost.:PORT",),
    ("",),
]
NOT_ONE_HOST: list[tuple[str, ...]] = [
    (),
    ("127.0.0.1:PORT", "rebound.example:PORT"),
    ("rebound.example:PORT", "127.0.0.1:PORT"),
]
FOREIGN_ORIGINS = [
    "http://rebound.example:PORT",
    "https://127.0.0.1:PORT",
    "http://127.0.0.1:1",
    "http://127.0.0.1",
    "http://localhost.rebound.example:PORT",
    "file://",
    "null",
    "",
]


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, LocalServer]]:
    with LocalServer(COUNTER) as ors, LocalServer(OPENENV, kind="openenv") as openenv:
        yield {"openreward": ors, "openenv": openenv}


@pytest.fixture(params=["openreward", "openenv", "websocket"])
def door(request: pytest.FixtureRequest, servers: dict[str, LocalServer]) -> tuple[LocalServer, str, dict[str, str]]:
    """A server, a path, and the headers that ask for it."""
    kind = request.param
    if kind == "websocket":
        return servers["openenv"], "/ws", HANDSHAKE
    return servers[kind], PATHS[kind], {}


def asked(door: tuple[LocalServer, str, dict[str, str]], hosts: tuple[str, ...], origin: str | None) -> int:
    """The answer's status; PORT stands for the server's own."""
    server, path, headers = door
    port = urlsplit(server.url).port
    assert port is not None
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=250)
    connection.putrequest("GET", path, skip_host=True)
    said = [*(("Host", host) for host in hosts), *headers.items(), ("X-API-Key", server.keys.client)]
    if origin is not None:
        said.append(("Origin", origin))
    for name, value in said:
        connection.putheader(name, value.replace("PORT", str(port)))
    connection.endheaders()
    try:
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.mark.parametrize("host", OWN_HOSTS)
def test_a_server_answers_its_own_names_and_its_own_pages(door: Any, host: str) -> None:
    answer = 101 if door[2] else 200
    assert asked(door, (host,), None) == answer
    assert asked(door, (host,), f"http://{host}") == answer


@pytest.mark.parametrize("hosts", FOREIGN_HOSTS)
def test_a_name_that_was_made_to_resolve_to_loopback_is_refused(door: Any, hosts: tuple[str, ...]) -> None:
    assert asked(door, hosts, None) == (403 if door[2] else 421)


@pytest.mark.parametrize("hosts", NOT_ONE_HOST)
def test_no_host_or_two_of_them_are_refused(door: Any, hosts: tuple[str, ...]) -> None:
    # By uvicorn itself (400), where its parser takes that for no request of HTTP/1.1.
    assert asked(door, hosts, None) in (400, 403 if door[2] else 421)


@pytest.mark.parametrize("origin", FOREIGN_ORIGINS)
def test_a_page_of_another_origin_is_refused_also_where_it_has_the_key(door: Any, origin: str) -> None:
    assert asked(door, ("127.0.0.1:PORT",), origin) == 403


@pytest.mark.parametrize(
    ("server", "host", "status"),
    [
        (("::1", 9), b"[::1]:9", 200),
        (("::1", 9), b"localhost:9", 200),
        (("::1", 9), b"127.0.0.1:9", 421),
        (("127.0.0.1", 9), b"[::1]:9", 421),
        (None, b"localhost:9", 421),
    ],
)
def test_a_name_counts_for_the_address_that_the_connection_came_in_on(
    server: tuple[str, int] | None, host: bytes, status: int
) -> None:
    sent: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        del scope, receive
        await send({"status": 200})

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        raise AssertionError("the body is not read")

    scope = {"type": "http", "server": server, "headers": [(b"host", host)]}
    asyncio.run(OwnOrigin(app)(scope, receive, send))
    assert sent[0]["status"] == status
