"""Keeps web pages out of the HTTP servers that xp starts: a page in a browser of this machine can reach loopback ports.

A page's own name may be made to resolve to 127.0.0.1 (DNS rebinding); its requests then say that name as their Host.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, Final

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

REFUSALS: Final = {
    421: b"the Host header must name this server's own loopback address and port\n",
    403: b"this server answers no page of another origin\n",
}
POLICY_VIOLATION: Final = 1008


class OwnOrigin:
    """ASGI middleware: refuses a Host that is not the server's own, and an Origin that is not its own pages'.

    A WebSocket is refused at its handshake, which the server answers with 403.
    """

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        status = None if scope["type"] == "lifespan" else refusal(scope.get("server"), scope["headers"])
        if status is None:
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": POLICY_VIOLATION})
        else:
            headers = [(b"content-type", b"text/plain")]
            await send({"type": "http.response.start", "status": status, "headers": headers})
            await send({"type": "http.response.body", "body": REFUSALS[status]})


def refusal(server: tuple[str, int] | None, headers: Iterable[tuple[bytes, bytes]]) -> int | None:
    """HTTP status that refuses a request, or None.

    Args:
        server: address and port that the connection came in on.
        headers: of the request, each name in lower case.
    """
    own, found = _own_names(server), list(headers)
    hosts = [value.lower() for name, value in found if name == b"host"]
    if len(hosts) != 1 or hosts[0] not in own:
        return 421
    origins = {value.lower() for name, value in found if name == b"origin"}
    return 403 if origins - {b"http://" + name for name in own} else None


def _own_names(server: tuple[str, int] | None) -> set[bytes]:
    """Host headers of requests meant for this server: the address that the connection came in on, and localhost."""
    if not server:
        return set()
    address, port = server
    written = f"[{address}]" if ":" in address else address
    return {f"{name}:{port}".encode() for name in (written, "localhost")}
