"""`python -m xp view`: serves the page on 127.0.0.1, episodes on demand; visitors need the token in the address."""

from __future__ import annotations

import hmac
import secrets
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Lock
from typing import Any, Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from xp.errors import ExitCode, XpError
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

    def app(self) -> Starlette:
        """The ASGI application."""
        answers = {"run": self.one_run, "episode": self.episode, "tokens": self.tokens, "search": self.search}
        routes = {"/": self.front} | {f"/api/{name}": answer for name, answer in answers.items()}
        return Starlette(routes=[Route(path, self._guarded(answer)) for path, answer in routes.items()])

    def front(self, request: Request) -> Response:
        """The page, without the episodes' texts."""
        del request
        with self._lock:
            for one in self._pages:
                one.refresh()
            runs = [one.data() for one in self._pages]
        data = frame(runs, comparison(self._runs, [one.spec for one in self._pages]), live=True)
        return HTMLResponse(page(title_of_page(self._runs), data, {}, is_live=True))

    def one_run(self, request: Request) -> Response:
        """Current data of a run, with the episodes from `rows_from` on."""
        with self._lock:
            one = self._page(request)
            one.refresh()
            return JSONResponse(one.data(_whole(request, "rows_from")))

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
        numbers = range(len(index.rows))
        return JSONResponse({"rows": [one for one in numbers if wanted in said_in(index.record(one)).lower()]})

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
        """Requires this server's Host and Origin, and the token, as a cookie or, the first time, in the address.

        A page in a browser of this machine can reach loopback ports, also under a name of its own that resolves to
        127.0.0.1 (DNS rebinding); its requests then have that name as Host.
        """

        def guarded(request: Request) -> Response:
            own, port = f"{COOKIE}_{request.url.port}", request.scope["server"][1]
            hosts, headers = [f"{HOST}:{port}", f"localhost:{port}"], request.headers
            if headers.get("host", "").lower() not in hosts:
                found: Response = PlainTextResponse("the Host header must be this server's own address and port\n", 421)
            elif headers.get("origin", "").lower() not in ("", *(f"http://{host}" for host in hosts)):
                found = PlainTextResponse("this server answers no page of another origin\n", 403)
            elif self._is_token(request.query_params.get("token", "")) and request.url.path == "/":
                found = RedirectResponse("/", 303)
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
