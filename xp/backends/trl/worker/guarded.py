"""vLLM's server for one stage: on 127.0.0.1, for requests with the stage's key only.

    python -m xp.backends.trl.worker.guarded serve <model> ... --middleware xp.backends.trl.worker.guarded.WithKey

vLLM's own key guards `/v1` only (0.22 to 0.31), while VLLM_SERVER_DEV_MODE adds paths that replace the weights.
"""

from __future__ import annotations

import os
import runpy
from typing import Any

from xp.envs.target import is_taken, origin
from xp.security import loopback
from xp.security.web_origin import App, OwnOrigin, Receive, Scope, Send
from xp.security.with_key import WantsKey

KEY = "VLLM_API_KEY"
"""Variable with the key, in the server (vLLM's own name) and in the trainer."""


class WithKey:
    """ASGI middleware for `--middleware`: refuses web pages, and requests without the key with status 401."""

    def __init__(self, app: App) -> None:
        self._own = OwnOrigin(WantsKey(app, os.environ[KEY]))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._own(scope, receive, send)


def let_trl_say(key: str) -> None:
    """Makes TRL's client of such a server send its key: the client has no argument for it, and connects at once."""
    import requests
    from trl.generation import vllm_generation

    base: Any = vllm_generation.VLLMClient

    def say_key(request: Any) -> Any:
        if is_taken(request.url):
            raise requests.ConnectionError(f"a process of another user listens on {origin(request.url)}")
        request.headers["Authorization"] = f"Bearer {key}"
        return request

    class GuardedClient(base):  # type: ignore[misc]
        def check_server(self, *args: Any, **kwargs: Any) -> None:
            self.session.auth = say_key
            super().check_server(*args, **kwargs)

    vllm_generation.VLLMClient = GuardedClient


if __name__ == "__main__":
    loopback.stay()
    runpy.run_module("vllm.entrypoints.cli.main", run_name="__main__", alter_sys=True)
