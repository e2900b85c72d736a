"""SkyRL's server of the Tinker API with JAX on the CPU, and a proxy in front of it that loses and refuses requests."""

from __future__ import annotations

import http.client
import os
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support.http_server import Reply, Request, http_server
from xp.lib.loopback import free_port
from xp.lib.plugins import Kind, names
from xp.worker.tiny_model import PLACE, SHIPPED

ROOT = Path(__file__).parents[2]
PYTHON = Path(os.environ.get("TINKER_PYTHON", ROOT / ".venv-tinker/bin/python"))
KEY = "tml-key-of-the-tests"
START_S = 300.0

needs_entry_point = pytest.mark.skipif(
    "tinker" not in names(Kind.BACKEND),
    reason="xp is installed without its entry points: make setup",
)
needs_server = pytest.mark.skipif(
    not PYTHON.exists(),
    reason="SkyRL's server of the Tinker API is not installed: make tinker-server",
)


@dataclass
class TinkerServer:
    """A running server."""

    url: str
    directory: Path
    """Of its checkpoints and requests, which a new server on it continues with."""
    process: subprocess.Popen[bytes] = field(repr=False)

    @property
    def environ(self) -> dict[str, str]:
        return {"TINKER_BASE_URL": self.url, "TINKER_API_KEY": KEY}


def start(directory: Path, *, port: int | None = None, batch: int = 8) -> TinkerServer:
    """Starts the server and waits for its answer."""
    chosen = port or free_port()
    command = [PYTHON, "-m", "tools.tinker_server", SHIPPED, "--name", PLACE, "--port", str(chosen)]
    more = ["--directory", directory, "--batch", str(batch)]
    environ = {**os.environ, "TINKER_API_KEY": KEY, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "log.txt").open("ab") as log:
        process = subprocess.Popen(
            [*map(str, command), *map(str, more)],
            cwd=ROOT,
            env=environ,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    server = TinkerServer(f"http://127.0.0.1:{chosen}", directory, process)
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        if process.poll() is not None:
            break
        try:
            urllib.request.urlopen(f"{server.url}/api/v1/healthz", timeout=5).close()
            return server
        except OSError:
            time.sleep(0.5)
    stop(server)
    raise AssertionError((directory / "log.txt").read_text()[-2000:])


def stop(server: TinkerServer) -> None:
    """Stops the server and its engine."""
    server.process.terminate()
    try:
        server.process.wait(30)
    except subprocess.TimeoutExpired:
        server.process.kill()
        server.process.wait()


@contextmanager
def tinker_server(directory: Path) -> Iterator[TinkerServer]:
    """A server for the time of the block."""
    server = start(directory)
    try:
        yield server
    finally:
        stop(server)


Fault = Callable[[Request, Callable[[], Reply]], Reply]
"""Answers a request of the proxy; the function that it gets asks the server itself."""


@contextmanager
def proxy(server: TinkerServer, fault: Fault) -> Iterator[str]:
    """URL of a proxy in front of a server."""

    def answer(request: Request) -> Reply:
        return fault(request, lambda: _forwarded(server.url, request))

    with http_server(answer) as http:
        yield http.url


def _forwarded(url: str, request: Request) -> Reply:
    left_out = ("content-length", "connection", "accept-encoding")
    headers = {name: value for name, value in request.headers.items() if name not in left_out}
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=600)
    try:
        connection.request(request.method, request.path, request.body, headers)
        response = connection.getresponse()
        body = response.read()
        kept = {
            name: value
            for name, value in response.getheaders()
            if name.lower() in ("content-type", "location", "expires")
        }
        return Reply(body, response.status, kept)
    finally:
        connection.close()
