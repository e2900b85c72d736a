"""Addresses of Slime's router and engines where a job has this machine alone, and why they cannot be given a key.

The last two tests fail where Slime or the router has learnt to say a key: then xp can close these doors
(xp/backends/slime/control/doors.py, docs/security.md).
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.trainers.slime_setup import needs_slime, slime_arguments, tiny_directory
from xp.security import loopback

pytestmark = needs_slime
KEY = "a-key-of-this-run"
ROUTER = """
import sys
from sglang_router.launch_router import RouterArgs, launch_router
launch_router(RouterArgs(host="127.0.0.1", port=int(sys.argv[1]), prometheus_port=int(sys.argv[2]),
                         prometheus_host="127.0.0.1", api_key=sys.argv[3]))
"""


class Asked(ThreadingHTTPServer):
    """Answers everything, and keeps what it was asked."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.requests: list[tuple[str, str | None]] = []
        """Path and Authorization of each."""


class _Answers(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def _answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        assert isinstance(self.server, Asked)
        self.server.requests.append((self.path, self.headers.get("Authorization")))
        body = json.dumps({"model_path": "m", "served_model_name": "m", "status": "ok", "text": "x"}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(autouse=True)
def _on_one_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in loopback.variables().items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def engine() -> Iterator[Asked]:
    with Asked() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def test_engine_and_router_get_the_loopback_address_as_their_host(tmp_path: Path) -> None:
    from sglang_router.launch_router import RouterArgs
    from slime.backends.sglang_utils.sglang_engine import _compute_server_args
    from slime.utils.http_utils import get_host_info

    args = slime_arguments(tiny_directory(tmp_path), "--router-prometheus-host", loopback.HOST)
    host = get_host_info()[1]
    assert host == loopback.HOST
    assert RouterArgs.from_cli_args(args, use_router_prefix=True).prometheus_host == loopback.HOST
    made, _ = _compute_server_args(args, 0, f"{host}:1", 2, host, 3, base_gpu_id=0)
    assert (made["host"], made["dist_init_addr"]) == (loopback.HOST, f"{loopback.HOST}:1")


def test_slime_asks_its_engines_and_its_router_without_the_key_that_it_was_given(tmp_path: Path, engine: Asked) -> None:
    from slime.backends.sglang_utils.sglang_engine import SGLangEngine

    args = slime_arguments(tiny_directory(tmp_path), "--sglang-api-key", KEY, "--router-api-key", KEY)
    one = SGLangEngine(args, 0)
    one.node_rank, one.server_host, one.server_port = 0, "127.0.0.1", engine.server_port
    one.router_ip, one.router_port = "127.0.0.1", engine.server_port
    one._register_to_router({})
    one._make_request("pause_generation")
    assert engine.requests == [("/workers", None), ("/pause_generation", None)]


def test_the_router_wants_its_key_and_asks_a_new_engine_who_it_is_without_one(engine: Asked) -> None:
    import requests
    from slime.utils.http_utils import find_available_port

    port = find_available_port(20000)
    words = [str(port), str(find_available_port(port + 100)), KEY]
    process = subprocess.Popen([sys.executable, "-c", ROUTER, *words], stdout=subprocess.DEVNULL)
    url, said = f"http://127.0.0.1:{port}/workers", {"url": f"http://127.0.0.1:{engine.server_port}"}
    try:
        _eventually(lambda: requests.get(f"http://127.0.0.1:{port}/health").ok)
        assert requests.post(url, json=said).status_code == 401
        assert requests.post(url, json=said, headers={"Authorization": f"Bearer {KEY}"}).ok
        _eventually(lambda: any(path.endswith("/server_info") for path, _ in engine.requests))
        assert {key for _, key in engine.requests} == {None}
    finally:
        process.kill()
        process.wait()


def _eventually(is_so: Any) -> None:
    import requests

    deadline = time.monotonic() + 200
    while time.monotonic() < deadline:
        try:
            if is_so():
                return
        except requests.ConnectionError:
            pass
        time.sleep(0.2)
    raise AssertionError("not within 200 s")
