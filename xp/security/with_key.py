"""Requires a run's key in requests to an HTTP server that the run starts."""

from __future__ import annotations

import hmac
from collections.abc import Collection

from xp.security.web_origin import App, Receive, Scope, Send

OPEN = ("/health",)
"""Paths that need no key: the trainers' own clients request them without one, and the answers have no content."""


class WantsKey:
    """ASGI middleware that answers requests without the key with status 401.

    Args:
        app: the protected application.
        key: expected in the header `Authorization: Bearer KEY`.
        open_paths: paths that need no key.
    """

    def __init__(self, app: App, key: str, open_paths: Collection[str] = OPEN) -> None:
        self._app, self._open_paths = app, open_paths
        self._wanted = f"Bearer {key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or scope["path"] in self._open_paths or self._is_known(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await send({"type": "http.response.start", "status": 401, "headers": []})
            await send({"type": "http.response.body", "body": b'{"error": "this server wants the key of its stage"}'})
        else:
            await send({"type": "websocket.close", "code": 1008})

    def _is_known(self, scope: Scope) -> bool:
        said = dict(scope["headers"]).get(b"authorization", b"")
        return hmac.compare_digest(said, self._wanted)
