"""`python -m xp view`: serves the page on 127.0.0.1, episodes on demand; visitors need the token in the address."""

from __future__ import annotations

import hmac
import secrets
import socket
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from threading import Lock
from typing import Any, Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from xp.errors import ExitCode, XpError
from xp.lib.asgi_key import App, Receive, Scope, Send
from xp.lib.loopback import HOST
from xp.report.comparison import comparison
from xp.report.data import RunPage, frame, page_of, title_of_page
from xp.report.detail import detail, said_in
from xp.report.foreign import page_text
from xp.report.web import page, policy

COOKIE: Final = "xp_view"
HEADERS: Final = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
MAX_IN_PAGE: Final = 200_000
"""Largest number of characters of one message, unless the page requests the whole message."""
MAX_FOUND: Final = 5_000
"""Largest number of episodes in the result of a search."""
REFUSALS: Final = {
    421: b"the Host header must name this server's own loopback address and port\n",
    403: b"this server answers no page of another origin\n",
}


class View:
    """State of the server: the runs, and the token that visitors need.

    Args:
        runs: directories of the runs.
        token: token of this server only.
    """

    def __init__(self, runs: Sequence[Path], token: str) -> None:
        self._runs = list(runs)
        self._token = token
        self._pages = [page_of(run) for run in runs]
        self._lock = Lock()

    def app(self) -> App:
        """The ASGI application, with checks of Host and Origin."""
        routes = [Route("/", self._guarded(self.front))]
        for name, answer in (
            ("run", self.one_run),
            ("episode", self.episode),
            ("tokens", self.tokens),
            ("search", self.search),
        ):
            routes.append(Route(f"/api/{name}", self._guarded(answer)))
        return OwnOrigin(Starlette(routes=routes))

    def front(self, request: Request) -> Response:
        """The page, without the episodes' texts."""
        del request
        with self._lock:
            runs = [self._data(one, 0) for one in self._pages]
        data = frame(runs, comparison(self._runs, [one.spec for one in self._pages]), live=True)
        return HTMLResponse(page(title_of_page(self._runs), data, {}, is_live=True))

    def one_run(self, request: Request) -> Response:
        """Current data of a run, with the episodes from `rows_from` on."""
        with self._lock:
            return JSONResponse(self._data(self._page(request), _whole(request, "rows_from")))

    def episode(self, request: Request) -> Response:
        """Messages and calls of one episode; with `whole=1` no message is cut."""
        record, _ = self._record(request)
        return JSONResponse(detail(record, None if _whole(request, "whole") else MAX_IN_PAGE))

    def tokens(self, request: Request) -> Response:
        """Tokens of one episode with the mask."""
        from xp.report.tokens import no_tokens, token_view

        record, file = self._record(request)
        one = self._page(request)
        try:
            return JSONResponse(token_view(one.run, record, file))
        except XpError as error:  # the tokenizer is missing, which is no fault of the page
            return JSONResponse(no_tokens(page_text(str(error)).text))

    def search(self, request: Request) -> Response:
        """Numbers of the episodes with a text."""
        wanted = request.query_params.get("text", "").lower()
        index = self._page(request).index
        found: list[int] = []
        for number in range(len(index.rows)):
            if wanted in said_in(index.record(number)).lower():
                found.append(number)
            if len(found) >= MAX_FOUND:
                break
        return JSONResponse({"rows": found})

    def _data(self, one: RunPage, rows_from: int) -> dict[str, Any]:
        one.refresh()
        return one.data(rows_from)

    def _page(self, request: Request) -> RunPage:
        number = _whole(request, "run")
        if number >= len(self._pages):
            raise XpError(f"run={number}: there are {len(self._pages)}", ExitCode.CONFIG)
        return self._pages[number]

    def _record(self, request: Request) -> tuple[Any, Path]:
        index, number = self._page(request).index, _whole(request, "row")
        if number >= len(index.rows):
            raise XpError(f"row={number}: there are {len(index.rows)}", ExitCode.CONFIG)
        return index.record(number), index.file_of(number)

    def _guarded(self, answer: Callable[[Request], Response]) -> Callable[[Request], Response]:
        """Requires the token, as a cookie or, the first time, in the address; converts faults to messages."""

        def guarded(request: Request) -> Response:
            own = f"{COOKIE}_{request.url.port}"
            if self._is_token(request.query_params.get("token", "")) and request.url.path == "/":
                found: Response = RedirectResponse("/", 303)
                found.set_cookie(own, self._token, httponly=True, samesite="strict")
            elif not self._is_token(request.cookies.get(own, "")):
                found = PlainTextResponse("open the address that `python -m xp view` printed, with its token\n", 401)
            else:
                try:
                    found = answer(request)
                except XpError as error:
                    found = PlainTextResponse(str(error), 400)
            found.headers.update(
                HEADERS | {"Content-Security-Policy": f"{policy(is_live=True)}; frame-ancestors 'none'"}
            )
            return found

        return guarded

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self._token.encode())


class OwnOrigin:
    """ASGI middleware that refuses a foreign Host, and an Origin that is not one of the server's own pages.

    A page in a browser of this machine can reach loopback ports, also under a name of its own that resolves to
    127.0.0.1 (DNS rebinding); its requests then have that name as Host.
    """

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        status = None if scope["type"] == "lifespan" else refusal(scope.get("server"), scope["headers"])
        if status is None:
            await self._app(scope, receive, send)
            return
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


def serve(runs: Sequence[Path], port: int, say: Callable[[str], None] = print) -> None:
    """Serves until Ctrl-C or SIGTERM.

    Args:
        runs: directories of the runs.
        port: port of 127.0.0.1; 0: a free one.
        say: receives lines for the user.
    """
    import uvicorn

    token = secrets.token_urlsafe(24)
    app = View(runs, token).app()
    try:
        listener = socket.create_server((HOST, port), backlog=64)
    except (OSError, OverflowError) as error:
        raise XpError(f"--port {port}: {error}; --port 0 takes a free one", ExitCode.RESOURCE) from None
    say(f"http://{HOST}:{listener.getsockname()[1]}/?token={token}")
    say("open this address in a browser of this machine (ssh -L forwards it); Ctrl-C ends the server")
    config = uvicorn.Config(app, log_config=None, access_log=False, timeout_graceful_shutdown=2)
    uvicorn.Server(config).run(sockets=[listener])


def _whole(request: Request, name: str) -> int:
    """A whole number in the query; 0 if it is absent."""
    text = request.query_params.get(name, "0")
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise XpError(f"{name}={text[:20]}: not a whole number", ExitCode.CONFIG)
    return int(text)
