"""`python -m xp view`: serves the pages on 127.0.0.1, episodes on demand; visitors need the token in the address."""

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
from starlette.responses import (
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
)
from starlette.routing import Route

from xp.errors import ExitCode, XpError
from xp.execution.named import EVALUATIONS, RUNS, known_names
from xp.lib.loopback import HOST
from xp.results.report.comparison import comparison
from xp.results.report.data import RunPage, frame, page_of, title_of_page
from xp.results.report.episode_detail import detail, said_in
from xp.results.report.listing import Listing
from xp.results.report.web import page, page_name, page_text, policy

COOKIE: Final = "xp_view"
HEADERS: Final = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
FIRST_S: Final = 0.1
MORE_S: Final = 0.5
"""Seconds that the start page, and a later request of it, spend on reading runs."""
MAX_IN_PAGE: Final = 200_000
"""Largest number of characters of one message, unless the page requests the whole message."""


class View:
    """State of the server: the runs, and the token that visitors need.

    Args:
        outputs: the outputs root.
        runs: directories of the runs of the page at `/`. Empty means that the start page of all runs is there.
        token: token of this server only.
    """

    def __init__(self, outputs: Path, runs: Sequence[Path], token: str) -> None:
        self._outputs = outputs
        self._runs = list(runs)
        self._token = token
        self._pages: dict[Path, RunPage] = {}
        self._listing = Listing(outputs)
        self._lock = Lock()
        for run in runs:
            self._page_of(run)

    def app(self) -> Starlette:
        """The ASGI application."""
        routes = {
            "/": self.front,
            "/open": self.open,
            "/api/list": self.all_runs,
            "/api/run": self.one_run,
        }
        routes |= {
            f"/api/{route.__name__}": route
            for route in (self.episode, self.tokens, self.search, self.task)
        }
        return Starlette(
            routes=[Route(path, self._guarded(answer)) for path, answer in routes.items()]
        )

    def front(self, request: Request) -> Response:
        """The page of the runs, or the start page."""
        if self._runs:
            return self.open(request)
        data = frame([], None, live=True) | {"list": self._listing.data(FIRST_S)}
        data["outputs"] = page_name(self._outputs.absolute())
        return HTMLResponse(page(page_name(f"Runs of {self._outputs}"), data, {}, is_live=True))

    def all_runs(self, request: Request) -> Response:
        """Rows of the start page that changed."""
        words = request.query_params.get("words", "").split()
        return JSONResponse(self._listing.data(MORE_S, _whole(request, "since"), words))

    def open(self, request: Request) -> Response:
        """The page of some runs, without the episodes' texts."""
        directories = self._directories(request)
        with self._lock:
            pages = [self._page_of(directory) for directory in directories]
            for run_page in pages:
                run_page.refresh()
            runs = [run_page.data() for run_page in pages]
        data = frame(
            runs, comparison(directories, [run_page.spec for run_page in pages]), live=True
        )
        data |= {"names": request.query_params.getlist("name"), "has_start": not self._runs}
        return HTMLResponse(page(title_of_page(directories), data, {}, is_live=True))

    def one_run(self, request: Request) -> Response:
        """Current data of a run, with the episodes from `rows_from` on."""
        with self._lock:
            run_page = self._page(request)
            run_page.refresh()
            return JSONResponse(run_page.data(_whole(request, "rows_from")))

    def episode(self, request: Request) -> Response:
        """Messages and calls of one episode; with `whole=1` no message is cut."""
        record, _ = self._record(request)
        most = None if _whole(request, "whole") else MAX_IN_PAGE
        return JSONResponse(detail(record, most, self._page(request).thumbnail))

    def tokens(self, request: Request) -> Response:
        """Tokens of one episode with the mask."""
        from xp.results.report.tokens import TokenReader, no_tokens

        record, file = self._record(request)
        run_page = self._page(request)
        try:
            reader = TokenReader(run_page.run)
            content = reader.tokens(record, file)
            return JSONResponse(content | {"names": reader.names(content["ids"])})
        except XpError as error:  # the tokenizer is missing, which is no fault of the page
            return JSONResponse(no_tokens(page_text(str(error))))

    def task(self, request: Request) -> Response:
        """The right answer and the hidden state of an episode's task, as its environment describes it now."""
        from xp.results.report.recipe import described_task

        record, _ = self._record(request)
        return JSONResponse({"text": described_task(self._page(request).run, record)})

    def search(self, request: Request) -> Response:
        """Numbers of the episodes with a text."""
        searched = request.query_params.get("text", "").lower()
        index = self._page(request).index
        records = index.records(range(len(index.entries)))
        rows = [at for at, record in enumerate(records) if searched in said_in(record).lower()]
        return JSONResponse({"rows": rows})

    def _directories(self, request: Request) -> Sequence[Path]:
        """Directories of the runs that the query names; without a name, those of the command line."""
        names = request.query_params.getlist("name")
        if not names:
            return self._runs
        known = known_names(self._outputs, (RUNS, EVALUATIONS))
        unknown = [name for name in names if name not in known]
        if unknown:
            raise XpError(
                f"there is no run or evaluation {page_name(unknown[0])}", ExitCode.RUN_DIR
            )
        return [known[name] for name in dict.fromkeys(names)]

    def _page_of(self, directory: Path) -> RunPage:
        if directory not in self._pages:
            self._pages[directory] = page_of(directory)
        return self._pages[directory]

    def _page(self, request: Request) -> RunPage:
        number = _whole(request, "run")
        directories = self._directories(request)
        if number >= len(directories):
            raise XpError(f"run={number}: there are {len(directories)}")
        return self._page_of(directories[number])

    def _record(self, request: Request) -> tuple[Any, Path]:
        index = self._page(request).index
        number = _whole(request, "row")
        if number >= len(index.entries):
            raise XpError(f"row={number}: there are {len(index.entries)}")
        return index.record(number), index.file_of(number)

    def _guarded(self, answer: Callable[[Request], Response]) -> Callable[[Request], Response]:
        """Requires this server's Host and Origin, and the token, as a cookie or, the first time, in the address.

        A page in a browser of this machine can reach loopback ports, also under a name of its own that resolves to
        127.0.0.1 (DNS rebinding); its requests then have that name as Host.
        """

        def guarded(request: Request) -> Response:
            cookie = f"{COOKIE}_{request.url.port}"
            port = request.scope["server"][1]
            hosts = [f"{HOST}:{port}", f"localhost:{port}"]
            headers = request.headers
            response: Response
            if headers.get("host", "").lower() not in hosts:
                response = PlainTextResponse(
                    "the Host header must be this server's own address and port\n", 421
                )
            elif headers.get("origin", "").lower() not in (
                "",
                *(f"http://{host}" for host in hosts),
            ):
                response = PlainTextResponse("this server answers no page of another origin\n", 403)
            elif self._is_token(request.query_params.get("token", "")) and request.url.path == "/":
                response = RedirectResponse("/", 303)
                response.set_cookie(cookie, self._token, httponly=True, samesite="strict")
            elif not self._is_token(request.cookies.get(cookie, "")):
                response = PlainTextResponse(
                    "open the address that `python -m xp view` printed, with its token\n", 401
                )
            else:
                try:
                    response = answer(request)
                except XpError as error:
                    response = PlainTextResponse(str(error), 400)
            rules = f"{policy(is_live=True)}; frame-ancestors 'none'"
            response.headers.update(HEADERS | {"Content-Security-Policy": rules})
            return response

        return guarded

    def _is_token(self, token: str) -> bool:
        return hmac.compare_digest(token.encode(), self._token.encode())


def serve(outputs: Path, runs: Sequence[Path], port: int) -> None:
    """Serves until Ctrl-C or SIGTERM.

    Args:
        outputs: the outputs root.
        runs: directories of the runs of the page. Empty means that all runs have a start page.
        port: port of 127.0.0.1. 0 means a free one.
    """
    import uvicorn

    token = secrets.token_urlsafe(24)
    app = View(outputs, runs, token).app()
    try:
        listener = socket.create_server((HOST, port), backlog=64)
    except (OSError, OverflowError) as error:
        raise XpError(
            f"--port {port}: {error}; give --port 0, which takes a free one", ExitCode.RESOURCE
        ) from None
    print(f"http://{HOST}:{listener.getsockname()[1]}/?token={token}")
    print(
        "open this address in a browser of this machine (ssh -L forwards it); Ctrl-C ends the server"
    )
    config = uvicorn.Config(app, log_config=None, access_log=False, timeout_graceful_shutdown=2)
    uvicorn.Server(config).run(sockets=[listener])


def _whole(request: Request, name: str) -> int:
    """A whole number in the query; 0 if it is absent."""
    text = request.query_params.get(name, "0")
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise XpError(f"{name}={text[:20]}: not a whole number")
    return int(text)
