"""vLLM's server for one stage: on 127.0.0.1, and answering whoever has the stage's key alone.

    python -m xp.backends.trl.worker.guarded serve <model> ... --middleware xp.backends.trl.worker.guarded.WithKey

vLLM's own key guards `/v1` only (0.22 to 0.31), while VLLM_SERVER_DEV_MODE adds paths that replace the weights.
"""

from __future__ import annotations

import hmac
import os
import runpy
from typing import Any
from urllib.parse import urlsplit

from xp.security import loopback
from xp.security.web_origin import App, OwnOrigin, Receive, Scope, Send
from xp.security.with_key import WantsKey

KEY = "VLLM_API_KEY"
"""Variable: vLLM's own name of it, in the server; in the trainer, the secret that each server's key is made of."""


class WithKey:
    """ASGI middleware, as `--middleware` takes it: nothing for web pages, 401 for whoever does not say the key."""

    def __init__(self, app: App) -> None:
        self._own = OwnOrigin(WantsKey(app, os.environ[KEY]))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._own(scope, receive, send)


def key_at(secret: str, url: str) -> str:
    """Key of one server of a stage: what another user learns who takes the port of one that died opens no other."""
    return hmac.new(secret.encode(), url.encode(), "sha256").hexdigest()


def let_trl_say(secret: str) -> None:
    """Make TRL's client of such a server say its key: it has no argument for one, and connects when it is made.

    Args:
        secret: of the stage, of which each server's key is made.
    """
    from trl.generation import vllm_generation

    base: Any = vllm_generation.VLLMClient

    def say_key(request: Any) -> Any:
        parts = urlsplit(request.url)
        request.headers["Authorization"] = f"Bearer {key_at(secret, f'{parts.scheme}://{parts.netloc}')}"
        return request

    class GuardedClient(base):  # type: ignore[misc]
        def check_server(self, *args: Any, **kwargs: Any) -> None:
            self.session.auth = say_key
            super().check_server(*args, **kwargs)

    vllm_generation.VLLMClient = GuardedClient


if __name__ in ("__main__", "__mp_main__"):  # and in what vLLM spawns, where this module is imported again
    loopback.stay()
if __name__ == "__main__":
    runpy.run_module("vllm.entrypoints.cli.main", run_name="__main__", alter_sys=True)
