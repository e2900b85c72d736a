"""The run's key for SkyRL's engines and their router on one machine, whose requests SkyRL sends without a key.

SkyRL (0.4.0) turns on paths of vLLM that replace the weights and unpickle what they are sent; its router hands on
whatever it is asked. The key is of the job's own Ray cluster (xp.lib.private_ray).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from skyrl.backends.skyrl_train.inference_servers.remote_inference_client import (
    RemoteGenerateClient,
    RemoteInferenceClient,
)
from skyrl.backends.skyrl_train.weight_sync.control_plane import SkyrlWeightSyncClient

from xp.worker.engines.key_check import engine_key, headers
from xp.worker.engines.probe import is_answering


class GenerateClient(RemoteGenerateClient):  # type: ignore[misc]
    """The part of the client that owns its sessions; it sends the key."""

    async def _get_session(self) -> Any:
        session = await super()._get_session()
        session.headers.update(headers())
        return session


class EngineClient(RemoteInferenceClient):  # type: ignore[misc]
    """The client, which sends the key; workers receive it pickled, and from then on send their weights with the key."""

    _generate_client: GenerateClient | None

    def _get_generate_client(self) -> GenerateClient:
        self._generate_client = self._generate_client or GenerateClient(proxy_url=self.proxy_url)
        return self._generate_client

    async def finish_session(self, session_id: str) -> None:
        """Does nothing: the router hands it to vLLM, which answers 404, and SkyRL would warn of each episode."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        # A worker makes this client of its own, in a module that cannot be imported without vLLM.
        SkyrlWeightSyncClient._post = _post_with_key


post = SkyrlWeightSyncClient._post


def _post_with_key(client: SkyrlWeightSyncClient, *request: Any) -> None:
    client._session.headers.update(headers())
    # A proxy that the environment names would get the key.
    client._session.trust_env = False
    post(client, *request)


def use(cfg: Any) -> bool:
    """Lets SkyRL use the client and the router with the key if its engines have xp's middleware; returns whether."""
    from skyrl.backends.skyrl_train.inference_servers import setup, vllm_router

    engine = cfg.generator.inference_engine
    is_external = engine.external_proxy_url is not None or engine.external_server_urls is not None
    if is_external or "middleware" not in engine.engine_init_kwargs:
        return False
    setup.build_router_args = _with_key(setup.build_router_args)
    setup.RemoteInferenceClient = EngineClient
    vllm_router.VLLMRouter = _asking_with_key()
    return True


def _with_key(build: Callable[..., Any]) -> Callable[..., Any]:
    """The router's arguments, with the key for its engines, and an engine that it asks about others' keys."""

    def router_args(*args: Any, **more: Any) -> Any:
        arguments = build(*args, **more)
        engines = arguments.worker_urls or [url for url, _ in arguments.prefill_urls]
        arguments.api_key = engine_key()
        # The router has this argument; its Python class (0.1.14) leaves it out.
        arguments.api_key_validation_urls = [f"{engines[0]}/v1/models"]
        return arguments

    return router_args


def _asking_with_key() -> Any:
    """SkyRL's process of the router; its health check sends the key."""
    from skyrl.backends.skyrl_train.inference_servers import vllm_router

    class RouterWithKey(vllm_router.VLLMRouter):  # type: ignore[misc]
        def _wait_until_healthy(self, router_url: str, timeout: float = 600.0) -> None:
            deadline = time.monotonic() + timeout
            while not is_answering(f"{router_url}/health", engine_key()):
                fault = ""
                if not self._process.is_alive():
                    fault = f"ended with {self._process.exitcode}"
                elif time.monotonic() > deadline:
                    fault = f"was not up after {timeout:g} s"
                if fault:
                    raise RuntimeError(f"the router of SkyRL's engines {fault}")
                time.sleep(0.1)

    return RouterWithKey
