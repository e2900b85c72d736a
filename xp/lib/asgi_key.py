"""Requires a key in requests to an HTTP server that a run starts."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class KeyCheck:
    """ASGI middleware that answers requests without the key with status 401.

    A web page in a browser of this machine can reach loopback ports, but does not have the key.

    Args:
        app: the protected application.
        key: expected in the header `Authorization: Bearer KEY`, or alone in another header.
        header: name of the header, in lower case.
        open_paths: paths that need no key.
    """

    def __init__(
        self, app: App, key: str, *, header: str = "authorization", open_paths: Collection[str] = ()
    ) -> None:
        self._app = app
        self._header = header.encode()
        self._open_paths = open_paths
        self._expected = (f"Bearer {key}" if header == "authorization" else key).encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or scope["path"] in self._open_paths or self._has_key(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await send({"type": "http.response.start", "status": 401, "headers": []})
            await send(
                {
                    "type": "http.response.body",
                    "body": b'{"error": "this server requires the key of its run"}',
                }
            )
        else:
            await send({"type": "websocket.close", "code": 1008})

    def _has_key(self, scope: Scope) -> bool:
        return hmac.compare_digest(dict(scope["headers"]).get(self._header, b""), self._expected)
