"""The run's key for SGLang and its router under Slime on one machine, whose requests Slime sends without a key.

The key is of the job's own Ray cluster (xp.lib.private_ray): every process reads it for itself, and it is in no
argument, variable or log. Slime sends requests in its rollout process and in the process of each engine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, wraps
from types import ModuleType, SimpleNamespace
from typing import Any, Final

from xp.lib import loopback_binding
from xp.lib.patching import after_import
from xp.worker.engines.key_check import OPEN, EngineKeyCheck, engine_key, headers

FOREIGN_SERVERS: Final = ("--rollout-external-engine-addrs", "--sglang-router-ip")
"""Slime's flags for engines or a router that this run does not start, which therefore have no key of xp's."""
ROUTER_PATHS: Final = (*OPEN, "/server_info", "/get_server_info", "/model_info", "/get_model_info")
"""Paths that the router (sglang-router 0.3.2) requests of a new engine without a key: settings, no text or weights."""
HTTP_UTILS: Final = "slime.utils.http_utils"
ENGINE: Final = "slime.backends.sglang_utils.sglang_engine"
SERVER: Final = "sglang.srt.entrypoints.http_server"


def prepare_process() -> None:
    """Sets up a process of Slime's on one machine before it imports Slime; Ray calls this in each of its workers."""
    loopback_binding.bind_to_loopback()
    after_import(HTTP_UTILS, _key_of_router_and_rollouts)
    after_import(ENGINE, _key_of_engine)
    # Slime starts it by its name in a separate process.
    after_import(SERVER, lambda module: setattr(module, "launch_server", launch_server))


def starts_all_servers(flags: Sequence[str]) -> bool:
    """True if Slime starts all of its engines and its router itself."""
    return not any(flag in flags for flag in FOREIGN_SERVERS)


def run_router(args: Any) -> int:
    """Body of the router's process; its key is set here, because Slime logs the arguments before it starts the process.

    Args:
        args: RouterArgs.

    Returns:
        The exit status.
    """
    from sglang_router.launch_router import launch_router

    args.api_key = engine_key()
    return int(launch_router(args) is None)


def launch_server(server_args: Any) -> None:
    """Body of an engine's process, in place of SGLang's `launch_server`."""
    from sglang.srt.entrypoints import http_server

    http_server.app.add_middleware(EngineKeyCheck, open_paths=ROUTER_PATHS)
    http_server.launch_server(server_args)


def _key_of_router_and_rollouts(module: ModuleType) -> None:
    """Gives the key to the router and to the client of Slime's rollouts."""
    init = module.init_http_client

    @wraps(init)
    def init_http_client(args: Any) -> None:
        init(args)
        if module._http_client is not None:
            module._http_client.headers.update(headers())

    module.init_http_client = init_http_client  # type: ignore[attr-defined]
    module.run_router = run_router  # type: ignore[attr-defined]


def add_to_requests(module: ModuleType, method: str, **arguments: Any) -> None:
    """Adds arguments to a module's requests by a method of the package `requests`; other modules' stay as they are."""
    requests = module.requests
    call = partial(getattr(requests, method), **arguments)
    module.requests = SimpleNamespace(**{**vars(requests), method: call})  # type: ignore[attr-defined]


def _key_of_engine(module: ModuleType) -> None:
    """Lets the process that starts an engine send the key, also while it waits for the engine."""
    wait = module._wait_server_healthy
    for method in ("get", "post", "delete"):
        add_to_requests(module, method, headers=headers())

    @wraps(wait)
    def wait_server_healthy(
        base_url: str, api_key: str | None, is_process_alive: Callable[[], bool]
    ) -> None:
        del api_key
        wait(base_url, engine_key(), is_process_alive)

    module._wait_server_healthy = wait_server_healthy  # type: ignore[attr-defined]
