"""SGLang and its router under Slime on one machine: both refuse requests without the run's key.

Slime asks them without a key, in its rollout process and in the process of each engine. The key is of the job's own Ray
cluster (xp.security.own_ray): every process reads it for itself, and it stands in no argument, variable or log.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from types import ModuleType
from typing import Any, Final

from xp.backends.slime.worker.engine_requests import EngineRequests
from xp.envs.target import is_taken, origin
from xp.security import loopback, own_ray
from xp.security.after_import import after_import
from xp.security.with_key import OPEN, WantsKey

FOREIGN_SERVERS: Final = ("--rollout-external-engine-addrs", "--sglang-router-ip")
"""Slime's flags for engines or a router that this run does not start, which therefore have no key of xp's."""
ASKED_BY_ROUTER: Final = (*OPEN, "/server_info", "/get_server_info", "/model_info", "/get_model_info")
"""Paths that the router (sglang-router 0.3.2) requests of a new engine without a key: settings, no text or weights."""
HTTP_UTILS: Final = "slime.utils.http_utils"
ENGINE: Final = "slime.backends.sglang_utils.sglang_engine"
SERVER: Final = "sglang.srt.entrypoints.http_server"


def prepare_process() -> None:
    """Set up a process of Slime's on one machine, before it imports Slime; Ray calls this in each of its workers."""
    loopback.stay()
    after_import(HTTP_UTILS, _guard_router_and_rollouts)
    after_import(ENGINE, _guard_engine)
    after_import(SERVER, _guard_server)


def is_wanted(flags: Sequence[str]) -> bool:
    """True if Slime starts all of its engines and its router itself."""
    return not any(flag in flags for flag in FOREIGN_SERVERS)


def said() -> dict[str, str]:
    """Headers of a request to this run's engines and router; none in a process without a closed cluster."""
    key = own_ray.engine_key()
    return {} if key is None else {"Authorization": f"Bearer {key}"}


def run_router(args: Any) -> int:
    """Body of the router's process; its key is set here, because Slime logs the arguments before it starts the process.

    Args:
        args: RouterArgs.

    Returns:
        The exit status.
    """
    from sglang_router.launch_router import launch_router

    args.api_key = own_ray.engine_key()
    return int(launch_router(args) is None)


def launch_server(server_args: Any) -> None:
    """Body of an engine's process, in place of SGLang's `launch_server`."""
    from sglang.srt.entrypoints import http_server

    key = own_ray.engine_key()
    if key is not None:
        http_server.app.add_middleware(WantsKey, key=key, open_paths=ASKED_BY_ROUTER)
    http_server.launch_server(server_args)


def _guard_router_and_rollouts(module: ModuleType) -> None:
    """Give the key to the router and to the client of Slime's rollouts."""
    if getattr(module.init_http_client, "xp_says_key", False):
        return
    init = module.init_http_client

    @wraps(init)
    def init_http_client(args: Any) -> None:
        init(args)
        if module._http_client is not None:
            module._http_client.headers.update(said())
            module._http_client.event_hooks = {"request": [_check_router]}

    init_http_client.xp_says_key = True  # type: ignore[attr-defined]
    module.init_http_client = init_http_client  # type: ignore[attr-defined]
    module.run_router = run_router  # type: ignore[attr-defined]


def _guard_engine(module: ModuleType) -> None:
    """Let the process that starts an engine send the key, also while it waits for the engine."""
    if getattr(module._wait_server_healthy, "xp_says_key", False):
        return
    wait = module._wait_server_healthy
    guarded = EngineRequests(module.requests, _with_key)
    # Slime waits for the engine with a session of its own.
    guarded.Session = _checking(module.requests.Session)  # type: ignore[attr-defined]
    module.requests = guarded  # type: ignore[attr-defined]

    @wraps(wait)
    def wait_server_healthy(base_url: str, api_key: str | None, is_process_alive: Callable[[], bool]) -> None:
        wait(base_url, own_ray.engine_key() or api_key, is_process_alive)

    wait_server_healthy.xp_says_key = True  # type: ignore[attr-defined]
    module._wait_server_healthy = wait_server_healthy  # type: ignore[attr-defined]


def _guard_server(module: ModuleType) -> None:
    """Replace this module's `launch_server`, which Slime starts by its name in a separate process."""
    module.launch_server = launch_server  # type: ignore[attr-defined]


def _checking(base: Any) -> Any:
    """The class of sessions of the package `requests`; each request is checked."""

    class CheckingSession(base):  # type: ignore[misc]
        def request(self, method: str, url: str, **arguments: Any) -> Any:
            _check_engine(url)
            return super().request(method, url, **arguments)

    return CheckingSession


def _check_engine(url: str) -> None:
    """Raise requests' error of a refused connection, where the key would go to another user."""
    if is_taken(url):
        import requests

        raise requests.ConnectionError(_foreign(url))


async def _check_router(request: Any) -> None:
    """Raise httpx's error of a refused connection, where the key would go to another user."""
    if is_taken(str(request.url)):
        import httpx

        raise httpx.ConnectError(_foreign(str(request.url)), request=request)


def _foreign(url: str) -> str:
    return f"a process of another user listens on {origin(url)}"


def _with_key(_method: str, url: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    _check_engine(url)
    return {**arguments, "headers": {**(arguments.get("headers") or {}), **said()}}
