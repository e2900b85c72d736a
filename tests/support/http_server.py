"""An HTTP server of this machine for tests: a function answers, and every request is kept."""

from __future__ import annotations

import json
import re
import threading
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BufferedIOBase
from typing import Any


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    headers: Mapping[str, str]
    """By names in lower case."""
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Reply:
    body: Any = b""
    """Bytes as they are; anything else as JSON."""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass
class HttpServer:
    """A running server and the requests that it has had."""

    url: str
    requests: list[Request] = field(default_factory=list)

    @property
    def paths(self) -> list[str]:
        return [one.path for one in self.requests]


def routed(stub: Any, routes: Mapping[str, str], request: Request) -> Reply | None:
    """What a stub's method answers to a request and the groups of its path; None means that it has no such route.

    Args:
        routes: "METHOD PATTERN" -> the name of the stub's method.
    """
    path, _, query = request.path.partition("?")
    for route, method in routes.items():
        verb, _, pattern = route.partition(" ")
        match = re.fullmatch(pattern, urllib.parse.unquote(path))
        if match is not None and verb == request.method:
            reply: Reply = getattr(stub, method)(request, query, *match.groups())
            return reply
    return None


def _chunks(file: BufferedIOBase) -> bytes:
    """A body whose length is not known at its beginning."""
    body = b""
    while size := int(file.readline(), 16):
        body += file.read(size)
        file.readline()
    file.readline()
    return body


def _empty(_: Request) -> Reply:
    return Reply()


@contextmanager
def http_server(
    answer: Callable[[Request], Reply] = _empty, host: str = "127.0.0.1"
) -> Iterator[HttpServer]:
    """Serves on a free port until the block ends; without a function every request gets an empty answer.

    Args:
        answer: runs in a thread of its own for each connection. An OSError of it drops the connection.
        host: a loopback address.
    """

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def handle_request(self) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            if headers.get("transfer-encoding") == "chunked":
                body = _chunks(self.rfile)
            else:
                body = self.rfile.read(int(headers.get("content-length", "0")))
            request = Request(self.command, self.path, headers, body)
            server.requests.append(request)
            reply = answer(request)
            data = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
            kind = {} if isinstance(reply.body, bytes) else {"Content-Type": "application/json"}
            self.send_response(reply.status)
            for name, value in {**kind, "Content-Length": str(len(data)), **reply.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = handle_request  # noqa: N815

        def log_message(self, *_: object) -> None:
            """Nothing."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128

        def handle_error(self, *_: object) -> None:
            """Nothing: a client may drop its connection."""

    with Server((host, 0), Handler) as http:
        server = HttpServer(f"http://{host}:{http.server_port}")
        threading.Thread(target=lambda: http.serve_forever(poll_interval=0.02), daemon=True).start()
        try:
            yield server
        finally:
            http.shutdown()
