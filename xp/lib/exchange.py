"""HTTP requests: one with its whole answer, a deadline and a largest size; and an opener for this machine's servers."""

from __future__ import annotations

import http.client
import math
import socket
import time
import urllib.request
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

PIECE: Final = 64 * 1024
"""Bytes that are read at a time."""


class WholeReply(NamedTuple):
    """An answer, read to its end."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes
    is_last: bool
    """True if the server takes no further request on this connection."""


def post(
    connection: http.client.HTTPConnection,
    path: str,
    body: bytes,
    headers: Mapping[str, str],
    *,
    limit_s: float,
    max_bytes: int,
) -> WholeReply:
    """Send a request and read its answer.

    Args:
        connection: is connected here if it is not yet; must not be used after an exception.
        path: path of the request.
        body: body of the request.
        headers: headers of the request.
        limit_s: seconds until the answer must be complete.
        max_bytes: largest size of the answer's body.

    Raises:
        TimeoutError: the answer is not complete in time.
        OSError: no connection, or a broken one.
            http.client.HTTPException: an answer that is too large, incomplete or no HTTP.
    """
    end = time.monotonic() + limit_s
    try:
        connection.timeout = limit_s
        if connection.sock is None:
            connection.connect()
        line = connection.sock  # None while the last answer of a connection is read
        line.settimeout(limit_s)
        connection.request("POST", path, body, headers)
        response = connection.getresponse()
        is_last = response.will_close
        return WholeReply(response.status, response.headers, body_of(response, max_bytes, line, end), is_last)
    except TimeoutError:
        raise TimeoutError(f"no complete answer in {limit_s:g} s") from None


def body_of(
    response: http.client.HTTPResponse, max_bytes: int, line: socket.socket | None = None, end: float = math.inf
) -> bytes:
    """Reads the body of an answer.

    Args:
        response: the answer.
        max_bytes: largest size of the body.
        line: socket of the answer, if `end` is finite.
        end: time, on the monotonic clock, until which the body must be complete.

    Raises:
        TimeoutError: it is not complete in time.
        http.client.HTTPException: it is too large or ends too early.
    """
    body = bytearray()
    # For a chunk of negative size, `read` would read the rest of the connection, of any length.
    while piece := response.read1(PIECE):
        body += piece
        if len(body) > max_bytes:
            raise http.client.HTTPException(f"a reply of more than {max_bytes} bytes")
        if line is not None:
            if (left := end - time.monotonic()) <= 0:
                raise TimeoutError
            line.settimeout(left)
    if response.length:
        raise http.client.IncompleteRead(b"", response.length)
    response.close()
    return bytes(body)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Turns a redirect into an HTTPError."""

    def redirect_request(self, *_: Any) -> None: ...


def direct_opener() -> urllib.request.OpenerDirector:
    """An opener that ignores the shell's proxies and follows no redirect, which could take a key elsewhere."""
    return urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect)
