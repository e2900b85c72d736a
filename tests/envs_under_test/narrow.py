"""A server of the SDK that holds few sessions, and one that opens them one after the other."""

from __future__ import annotations

from openreward.environments import Server
from starlette.types import ASGIApp, Receive, Scope, Send

from tests.envs_under_test.counter import Counter

ROOM = 12


class Narrow:
    """Refuses a session beyond ROOM with 429, as a gateway does."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._open = set[bytes]()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sid = dict(scope.get("headers", ())).get(b"x-session-id", b"")
        if scope.get("path") == "/create":
            if len(self._open) >= ROOM:
                await send({"type": "http.response.start", "status": 429, "headers": []})
                await send({"type": "http.response.body", "body": b"{}"})
                return
            self._open.add(sid)
        elif scope.get("path") == "/delete":
            self._open.discard(sid)
        await self._app(scope, receive, send)


narrow = Narrow(Server([Counter]).app)
