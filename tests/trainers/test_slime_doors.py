"""Addresses of Slime's router and engines where a job has this machine alone, and their key.

The engine here keeps what it is asked; tests/engines/test_slime.py has SGLang's own (make test-sglang).
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.trainers.slime_setup import needs_slime, slime_arguments, tiny_directory
from xp.backends.slime.worker import engine_key
from xp.engines.key_check import headers
from xp.lib import loopback
from xp.lib import ray_token as own_ray

pytestmark = needs_slime


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


@pytest.fixture
def key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Of this process's cluster, as every process of the job reads it."""
    own_ray.token_file(tmp_path).write_text("a-token")
    variables = own_ray.token_variables(own_ray.token_file(tmp_path)) | {loopback.ONE_MACHINE: "1"}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    engine_key.prepare_process()
    found = own_ray.engine_key()
    assert found is not None
    return found


@pytest.fixture
def router(key: str, tmp_path: Path, engine: Asked, capfd: pytest.CaptureFixture[str]) -> Iterator[Any]:
    """Slime's own router, at which Slime's own engine has registered; gives Slime's arguments."""
    import multiprocessing

    from slime.backends.sglang_utils.sglang_engine import SGLangEngine
    from slime.ray.rollout import _start_router

    args = slime_arguments(tiny_directory(tmp_path))
    before = set(multiprocessing.active_children())
    args.sglang_router_ip, args.sglang_router_port = _start_router(args)
    started = set(multiprocessing.active_children()) - before
    one = SGLangEngine(args, 0)
    one.node_rank, one.server_host, one.server_port = 0, "127.0.0.1", engine.server_port
    one.router_ip, one.router_port = args.sglang_router_ip, args.sglang_router_port
    try:
        _eventually(lambda: requests.get(f"{_url(args)}/health").ok)
        one._register_to_router({})
        _eventually(lambda: requests.get(f"{_url(args)}/workers", headers=headers()).json()["total"] == 1)
        one._make_request("pause_generation")
        yield args
    finally:
        for process in started:
            process.kill()
            process.join()
    assert key not in "".join(capfd.readouterr()), "neither Slime nor the router writes the key to a log"


def _url(args: Any) -> str:
    return f"http://{args.sglang_router_ip}:{args.sglang_router_port}"


def test_slimes_engine_and_rollouts_say_the_key_to_the_engine(router: Any, engine: Asked, key: str) -> None:
    from slime.utils import http_utils

    http_utils.init_http_client(router)
    answer = asyncio.run(http_utils.post(f"{_url(router)}/generate", {"input_ids": [1], "sampling_params": {}}))
    assert answer["text"] == "x"
    said = dict(engine.requests)
    assert said["/pause_generation"] == said["/generate"] == f"Bearer {key}"
    asked_without = {path for path, header in engine.requests if header is None}
    assert asked_without <= set(engine_key.ASKED_BY_ROUTER), "the router alone asks without it"


def test_the_router_refuses_whoever_does_not_say_it(router: Any, engine: Asked) -> None:
    before = list(engine.requests)
    body = {"url": f"http://127.0.0.1:{engine.server_port}", "input_ids": [1]}
    for method, path in (("POST", "/workers"), ("GET", "/workers"), ("POST", "/generate"), ("POST", "/flush_cache")):
        for said in ({}, {"Authorization": "Bearer None"}):
            assert requests.request(method, _url(router) + path, json=body, headers=said).status_code == 401
    assert engine.requests == before


def test_servers_that_the_run_does_not_start_get_no_key() -> None:
    assert engine_key.is_wanted(("--rollout-num-gpus", "4"))
    assert not engine_key.is_wanted(("--rollout-external-engine-addrs", "10.0.0.1:30000"))
    assert not engine_key.is_wanted(("--sglang-router-ip", "10.0.0.1"))


def _eventually(is_so: Any) -> None:
    deadline = time.monotonic() + 200
    while time.monotonic() < deadline:
        try:
            if is_so():
                return
        except requests.ConnectionError:
            pass
        time.sleep(0.2)
    raise AssertionError("not within 200 s")
