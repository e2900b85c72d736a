"""Slime's real engine and router on SGLang's real server: a key, and loopback alone (make test-sglang)."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import requests

from tests.support.listeners import listeners, off_loopback
from tests.support.slime_engine import ON_CPU, needs_server
from tests.trainers.slime_setup import (
    needs_slime,
    slime_arguments,
    tiny_directory,
)
from xp.backends.slime.worker import engine_key
from xp.lib import loopback_binding, private_ray
from xp.lib.loopback import HOST, free_port
from xp.worker.engines.key_check import headers

pytestmark = [needs_slime, needs_server, pytest.mark.slow, pytest.mark.timeout(1800)]


@dataclass(frozen=True)
class Servers:
    """Slime's own engine and router of one machine, with the key of its cluster."""

    args: Any
    engine: Any
    """Slime's SGLangEngine, which started the server and registered it."""


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    root = tmp_path_factory.mktemp("sglang")
    private_ray.token_file(root).write_text("a-token")
    # Reads and writes sound: SGLang imports it with its server, and a text model needs none.
    (root / "modules").mkdir()
    (root / "modules/soundfile.py").touch()
    variables = {
        **loopback_binding.loopback_variables(),
        **private_ray.token_variables(private_ray.token_file(root)),
        loopback_binding.ONE_MACHINE: "1",
        "SGLANG_USE_CPU_ENGINE": "1",
        # Its own choice of a second port is the first one plus 10,000, which may be none.
        "SGLANG_GRPC_PORT": str(free_port()),
        "PYTHONPATH": f"{os.environ['PYTHONPATH']}:{root / 'modules'}:{Path.cwd()}",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        patch.syspath_prepend(str(root / "modules"))
        engine_key.prepare_process()
        from slime.backends.sglang_utils.sglang_engine import SGLangEngine
        from slime.ray.rollout import _start_router
        from slime.utils.http_utils import init_http_client

        args = slime_arguments(tiny_directory(root), *ON_CPU)
        args.sglang_router_ip, args.sglang_router_port = _start_router(args)
        router = multiprocessing.active_children()
        init_http_client(args)
        engine = SGLangEngine(args, rank=0, worker_type="regular", base_gpu_id=0)
        try:
            place = (args.sglang_router_ip, args.sglang_router_port)
            engine.init(f"{HOST}:{free_port()}", free_port(), free_port(), HOST, None, *place)
            yield Servers(args, engine)
        finally:
            if getattr(engine, "process", None) is not None:
                engine.shutdown()
            for process in router:
                process.kill()
                process.join()


@pytest.mark.parametrize(
    ("method", "path"),
    [
        *(("POST", "/generate"), ("POST", "/update_weights_from_disk")),
        *(("GET", "/health_generate"), ("GET", "/v1/models"), ("GET", "/docs")),
    ],
)
def test_engine_and_router_refuse_whoever_does_not_say_the_key(
    servers: Servers, method: str, path: str
) -> None:
    engine = f"http://{HOST}:{servers.engine.server_port}"
    for said in ({}, {"Authorization": "Bearer None"}):
        assert (
            requests.request(method, engine + path, json={}, headers=said, timeout=60).status_code
            == 401
        )
    assert requests.get(f"{engine}/v1/models", headers=headers(), timeout=60).ok
    router = f"http://{HOST}:{servers.args.sglang_router_port}/generate"
    assert requests.post(router, json={}, timeout=60).status_code == 401


def test_engine_and_router_listen_on_loopback_alone(servers: Servers) -> None:
    found = listeners(os.getpid())
    ports = {servers.engine.server_port, servers.args.sglang_router_port}
    assert ports <= {port for _, _, port in found}
    assert not ports & {port for _, _, port in off_loopback(found)}
    key = private_ray.engine_key()
    processes = psutil.Process().children(recursive=True)
    assert key
    assert [one.pid for one in processes if key in " ".join(one.cmdline())] == []
