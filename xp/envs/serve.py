"""The child process of a local server: the SDK's app on 127.0.0.1, for its parent only."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import socket
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final

from xp.envs.bounds import bound_memory, stacks_within
from xp.envs.light_sdk import import_openenv, import_openreward
from xp.lib.asgi_key import App, KeyCheck
from xp.lib.load import load_object
from xp.lib.loopback import HOST, free_port

KEY_VARIABLE: Final = "XP_SERVE_KEY"
BLOCKING_CALLS: Final = 1024
"""Largest number of concurrent calls of blocking tools; the client's limit is env.limits.max_sessions."""
STACKS: Final = 0.5
"""Largest share of env.limits.memory_gb for the stacks of these calls' threads; further calls wait."""


class Threads(ThreadPoolExecutor):
    """Threads for blocking calls: as many as there were calls at the same time.

    Python 3.12's own pool takes threads that wait for busy ones, and starts new ones until it has its largest number.

    Args:
        most: largest number of threads.
    """

    def __init__(self, most: int) -> None:
        super().__init__(1)
        self._most, self._calls, self._counting = most, 0, threading.Lock()

    def submit(self, *args: Any, **kwargs: Any) -> Future[Any]:
        with self._counting:
            self._calls += 1
            self._max_workers = max(self._max_workers, min(self._most, self._calls))
        call = super().submit(*args, **kwargs)
        call.add_done_callback(self._done)
        return call

    def _done(self, _: Future[Any]) -> None:
        with self._counting:
            self._calls -= 1


def main(kind: str, serve: str, report_fd: int, port: int, memory_gb: float | None) -> None:
    """Serves `module:Class` until SIGTERM.

    The port is written to `report_fd` as one line of JSON; port 0 means any port.
    """
    bound_memory(memory_gb)
    key = os.environ.pop(KEY_VARIABLE)
    with os.fdopen(report_fd, "w") as report:
        try:
            app = KeyCheck(_app(kind, serve), key, header="x-api-key")
            # Not any port of the system: a replacement of this server must find the same one free.
            listener = socket.create_server((HOST, port or free_port()), backlog=1024)
        except Exception as error:
            lacks = error.name if isinstance(error, ModuleNotFoundError) else None
            report.write(json.dumps({"error": f"{type(error).__name__}: {error}", "lacks": lacks}) + "\n")
            raise SystemExit(1) from error
        report.write(json.dumps({"port": listener.getsockname()[1], "pid": os.getpid()}) + "\n")
    room = BLOCKING_CALLS if memory_gb is None else stacks_within(memory_gb * STACKS)
    _run(app, listener, Threads(min(BLOCKING_CALLS, room)))


def _app(kind: str, serve: str) -> App:
    if kind == "openenv":
        import_openenv()
    else:
        import_openreward()
    environment = load_object(serve)
    maker = importlib.import_module("xp.envs.openenv_app" if kind == "openenv" else "xp.envs.ors_app")
    app: App = maker.app_of(environment)
    return app


def _run(app: App, listener: socket.socket, threads: Threads) -> None:
    import uvicorn

    class Threaded(uvicorn.Server):  # type: ignore[misc]
        """Server with enough threads for blocking tools; Python's default is the number of cores plus four."""

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            asyncio.get_running_loop().set_default_executor(threads)
            await super().startup(sockets)

    config = uvicorn.Config(app, log_config=None, access_log=False, timeout_keep_alive=75, timeout_graceful_shutdown=2)
    Threaded(config).run(sockets=[listener])


if __name__ == "__main__":
    memory_gb = float(sys.argv[5]) if sys.argv[5] else None
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), memory_gb)
