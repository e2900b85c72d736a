"""Doors of SkyRL's engines on one machine: the real router and vLLM's real app, for whoever has the key alone."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

pytest.importorskip("vllm_router", reason="SkyRL's router is in .venv-vllm: make test-vllm")
pytest.importorskip("skyrl", reason="SkyRL is in .venv-vllm: make test-vllm")

import uvicorn

from tests.support.listeners import Listener, listeners, off_loopback
from xp.backends.skyrl.worker import process
from xp.backends.skyrl.worker.train import MIDDLEWARE
from xp.lib import loopback, private_ray

REQUESTS = (
    ("POST", "/add_worker?url=http://x:1"),
    ("POST", "/collective_rpc"),
    ("POST", "/inference/v1/generate"),
)


class Doors:
    """An engine that says `{}` behind xp's middleware, and SkyRL's router before it."""

    def __init__(self, url: str, engine: str, found: set[Listener]) -> None:
        self.url = url
        self.engine = engine
        self.listeners = found


@pytest.fixture(scope="module")
def key() -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch:
        directory = private_ray.make_directory()
        for name, value in private_ray.variables({}, directory).items():
            patch.setenv(name, value)
        patch.setenv(private_ray.DIRECTORY, str(directory))
        patch.setenv("VLLM_HOST_IP", loopback.HOST)
        made = private_ray.engine_key()
        assert made is not None
        yield made


@pytest.fixture(scope="module")
def doors(key: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    del key
    process.prepare_process()
    from skyrl.backends.skyrl_train.inference_servers import setup, vllm_router

    from xp.backends.skyrl.worker import engine_key
    from xp.worker.engines.key_check import EngineKeyCheck

    server = uvicorn.Server(
        uvicorn.Config(EngineKeyCheck(_nothing), host="127.0.0.1", port=0, log_level="error")
    )
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.05)
    engine = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    inference = SimpleNamespace(
        external_proxy_url=None,
        external_server_urls=None,
        engine_init_kwargs={"middleware": [MIDDLEWARE]},
        router_init_kwargs={"host": loopback.HOST, "prometheus_host": loopback.HOST},
    )
    with pytest.MonkeyPatch.context() as patch:
        for module, name in (
            (setup, "build_router_args"),
            (setup, "RemoteInferenceClient"),
            (vllm_router, "VLLMRouter"),
        ):
            patch.setattr(module, name, getattr(module, name))
        patch.setattr(vllm_router, "get_node_ip", lambda: loopback.HOST)
        engine_key.use(SimpleNamespace(generator=SimpleNamespace(inference_engine=inference)))
        assert setup.RemoteInferenceClient is engine_key.EngineClient
        patch.setattr("skyrl.backends.skyrl_train.inference_servers.utils.get_config_as_dict", dict)
        args = setup.build_router_args(inference, server_urls=[engine])
        router = vllm_router.VLLMRouter(args, log_path=str(tmp_path_factory.mktemp("router")))
        url = router.start()
        try:
            yield Doors(url, engine, listeners(os.getpid()))
        finally:
            router.shutdown()
            server.should_exit = True
            thread.join(10)


async def _nothing(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "http":
        await receive()
        await send(
            {
                "type": "http.response.start",
                "status": 200,
                "headers": [(b"content-type", b"application/json")],
            }
        )
        await send({"type": "http.response.body", "body": b"{}"})


def test_router_and_engine_listen_on_loopback_alone(doors: Doors) -> None:
    assert len(doors.listeners) >= 3, "the engine, the router and its metrics"
    assert off_loopback(doors.listeners) == set()


@pytest.mark.parametrize(("method", "path"), REQUESTS)
@pytest.mark.parametrize(
    "said", [{}, {"authorization": "Bearer no"}, {"origin": "http://evil.example"}]
)
def test_the_router_hands_nothing_on_without_the_key(
    doors: Doors, method: str, path: str, said: dict[str, str]
) -> None:
    for place in (doors.url, doors.engine):
        assert httpx.request(method, place + path, headers=said, trust_env=False).status_code == 401


@pytest.mark.parametrize("path", ["/inference/v1/generate", "/v1/completions"])
def test_the_router_hands_on_what_has_the_key(doors: Doors, key: str, path: str) -> None:
    said = {"authorization": f"Bearer {key}"}
    assert (
        httpx.post(
            doors.url + path, headers=said, json={"prompt": "x"}, trust_env=False
        ).status_code
        == 200
    )


def test_vllms_app_takes_the_middleware_as_skyrl_hands_it_over(key: str) -> None:
    from fastapi.testclient import TestClient
    from skyrl.backends.skyrl_train.inference_servers.vllm_server_actor import (
        _build_standalone_cli_args,
    )
    from vllm.entrypoints.openai.api_server import build_app

    args = _build_standalone_cli_args([])
    args.middleware = [MIDDLEWARE]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_SERVER_DEV_MODE", "1")
        asked = TestClient(build_app(args), raise_server_exceptions=False)
        for path in ("/v1/models", "/collective_rpc", "/sleep", "/server_info"):
            assert asked.post(path, json={}).status_code == 401, path
        said = {"authorization": f"Bearer {key}"}
        assert asked.get("/version", headers=said).status_code == 200
        # The router hands on SkyRL's word for the end of an episode (EngineClient.finish_session).
        assert asked.post("/finish_session?session_id=a", headers=said).status_code == 404
