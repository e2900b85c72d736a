"""Protects xp's HTTP servers from web pages: a page in a browser of this machine can reach loopback ports.

An attacker can make a page's name resolve to 127.0.0.1 (DNS rebinding); its requests then have that name as Host.
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
    """ASGI middleware that refuses a foreign Host, and an Origin that is not one of the server's own pages.

    A WebSocket is refused at its handshake, with status 403.
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
        server: local address and port of the connection.
        headers: headers of the request, names in lower case.
    """
    own, found = _own_names(server), list(headers)
    hosts = [value.lower() for name, value in found if name == b"host"]
    if len(hosts) != 1 or hosts[0] not in own:
        return 421
    origins = {value.lower() for name, value in found if name == b"origin"}
    return 403 if origins - {b"http://" + name for name in own} else None


def _own_names(server: tuple[str, int] | None) -> set[bytes]:
    """Legal Host headers of a server: the connection's local address, and localhost."""
    if not server:
        return set()
    address, port = server
    written = f"[{address}]" if ":" in address else address
    return {f"{name}:{port}".encode() for name in (written, "localhost")}
