"""The child process of a local server: the SDK's app on 127.0.0.1, for its parent only."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import math
import os
import socket
import sys
import typing
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final

from xp.envs.light_sdk import import_openenv, import_openreward
from xp.envs.pythons import bound_memory, stacks_within
from xp.envs.watched_calls import WatchedCalls
from xp.lib.asgi_key import App, KeyCheck
from xp.lib.load import load_object
from xp.lib.loopback import HOST, free_port

KEY_VARIABLE: Final = "XP_SERVE_KEY"
SDKS: Final = ("openreward.environments", "ors")
"""Modules of the SDKs for ORS, with a base class `Environment` and a `Server`."""
BASES: Final = (*SDKS, "openenv.core.env_server.interfaces")
"""Modules with a base class `Environment` of served environments."""
MAX_SESSIONS: Final = 1024
"""Largest number of sessions of a class that supports several; the client's limit is env.limits.max_sessions."""
BLOCKING_CALLS: Final = 1024
"""Largest number of concurrent calls of blocking tools; the client's limit is env.limits.max_sessions."""
STACKS: Final = 0.5
"""Largest share of env.limits.memory_gb for the stacks of these calls' threads; further calls wait."""


def main(
    kind: str, serve: str, report_fd: int, port: int, memory_gb: float | None, call_timeout_s: float
) -> None:
    """Serves `module:Class` until SIGTERM.

    `report_fd` receives lines of JSON: the port, and later what `WatchedCalls` reports; port 0 means any port.
    """
    bound_memory(memory_gb)
    key = os.environ.pop(KEY_VARIABLE)
    os.set_inheritable(report_fd, False)

    def report(event: Mapping[str, Any]) -> None:
        with suppress(OSError):  # The parent has ended.
            os.write(report_fd, json.dumps(event).encode() + b"\n")

    calls = WatchedCalls(report, call_timeout_s)
    try:
        app = KeyCheck(_app(kind, serve, calls), key, header="x-api-key")
        # Not any port of the system: a replacement of this server must find the same one free.
        listener = socket.create_server((HOST, port or free_port()), backlog=1024)
    except Exception as error:
        lacks = error.name if isinstance(error, ModuleNotFoundError) else None
        report({"error": f"{type(error).__name__}: {error}", "lacks": lacks})
        raise SystemExit(1) from error
    report({"port": listener.getsockname()[1], "pid": os.getpid(), "places": calls.places})
    num_threads = BLOCKING_CALLS
    if memory_gb is not None:
        num_threads = min(num_threads, stacks_within(memory_gb * STACKS))
    _run(app, listener, ThreadPoolExecutor(num_threads))


def _app(kind: str, serve: str, calls: WatchedCalls) -> App:
    is_openenv = kind == "openenv"
    (import_openenv if is_openenv else import_openreward)()
    target = load_object(serve)
    for name in BASES:
        base = getattr(sys.modules.get(name), "Environment", None)
        if base is not None:
            calls.watch(target, base)
    app: App = (openenv_app if is_openenv else ors_app)(target)
    return app


def _run(app: App, listener: socket.socket, threads: ThreadPoolExecutor) -> None:
    import uvicorn

    class Threaded(uvicorn.Server):  # type: ignore[misc]
        """Server with enough threads for blocking tools; Python's default is the number of cores plus four."""

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            asyncio.get_running_loop().set_default_executor(threads)
            await super().startup(sockets)

    config = uvicorn.Config(
        app, log_config=None, access_log=False, timeout_keep_alive=75, timeout_graceful_shutdown=2
    )
    Threaded(config).run(sockets=[listener])


def spell_out(answer: Any, key: str) -> None:
    """Changes the class of an SDK's answers: JSON gets such a reward as `nan`, `inf` or `-inf`, which wire.reward_of
    refuses.

    Args:
        answer: pydantic model.
        key: key of the object that has the reward, in the answer.
    """
    write = answer.model_dump_json

    def model_dump_json(self: Any, *args: Any, **options: Any) -> str:
        text: str = write(self, *args, **options)
        reward = (self.model_dump().get(key) or {}).get("reward")
        if not isinstance(reward, float) or math.isfinite(reward):
            return text
        content = json.loads(text)
        content[key]["reward"] = str(float(reward))
        return json.dumps(content)

    answer.model_dump_json = model_dump_json


def ors_app(target: Any) -> Any:
    """The ASGI app of `module:name`: an app unchanged, or made from a class by the server of its SDK.

    Raises:
        TypeError: it is neither.
    """
    for name in SDKS:
        if name in sys.modules:
            spell_out(sys.modules[name].RunToolOutput, "output")
    if not inspect.isclass(target):
        if not callable(target):
            raise TypeError(f"{target!r} is neither an app nor a class of an environment")
        return target
    roots = {
        base.__module__.partition(".")[0]
        for base in target.__mro__
        if base.__name__ == "Environment"
    }
    for name in SDKS:
        if name.partition(".")[0] in roots:
            return importlib.import_module(name).Server([target]).app
    raise TypeError(f"{target.__name__} derives from no Environment of {' or '.join(SDKS)}")


def openenv_app(target: Any) -> Any:
    """The ASGI app of `module:name`: an app unchanged, or made from a class of `openenv.core.env_server.Environment`.

    Raises:
        TypeError: it is neither, or its type parameters do not give its models.
    """
    from openenv.core.env_server.http_server import create_fastapi_app
    from openenv.core.env_server.interfaces import Environment
    from openenv.core.env_server.types import WSObservationResponse
    from starlette.applications import Starlette

    spell_out(WSObservationResponse, "data")
    if isinstance(target, Starlette):
        return target
    if not inspect.isclass(target) or not issubclass(target, Environment):
        raise TypeError(f"{target!r} is neither an app nor a class of openenv's Environment")
    environment: Any = target
    action, observation = _models(environment)
    sessions = MAX_SESSIONS if environment.SUPPORTS_CONCURRENT_SESSIONS else 1
    return create_fastapi_app(environment, action, observation, max_concurrent_envs=sessions)


def _models(environment: type) -> tuple[type, type]:
    """Action and observation of `class Mine(Environment[Action, Observation, State])`, or of its `step`."""
    from openenv.core.env_server.mcp_environment import MCPEnvironment
    from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation

    for base in environment.__mro__:
        for origin in getattr(base, "__orig_bases__", ()):
            models = [each for each in typing.get_args(origin) if inspect.isclass(each)]
            if len(models) >= 2:
                return models[0], models[1]
    if issubclass(environment, MCPEnvironment):
        return CallToolAction, CallToolObservation
    hints = typing.get_type_hints(environment.step)  # type: ignore[attr-defined]
    action = hints.get("action")
    observation = hints.get("return")
    if inspect.isclass(action) and inspect.isclass(observation):
        return action, observation
    fix = "derive it from Environment[YourAction, YourObservation, State]"
    raise TypeError(f"{environment.__name__} names no models: {fix}")


if __name__ == "__main__":
    memory_gb = float(sys.argv[5]) if sys.argv[5] else None
    main(
        sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), memory_gb, float(sys.argv[6])
    )
