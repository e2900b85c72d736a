"""HTTP requests: one with its whole answer, a deadline and a largest size; and an opener for this machine's servers.

The timeout of a socket bounds the wait for each piece of an answer, so a server that sends one byte at a time would
hold its client for ever.
"""

from __future__ import annotations

import http.client
import socket
import threading
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple, Self

PIECE: Final = 64 * 1024
"""Bytes that are read at a time."""
REPEAT_S: Final = 0.05
"""Seconds between two attempts to end a late exchange; a socket cannot be shut down during a TLS handshake."""


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
    with _Cutoff(connection, limit_s) as cutoff:
        if connection.sock is None:
            connection.connect()
        cutoff.socket = connection.sock
        connection.request("POST", path, body, headers)
        response = connection.getresponse()
        is_last = response.will_close
        return WholeReply(response.status, response.headers, body_of(response, max_bytes), is_last)


def body_of(response: http.client.HTTPResponse, max_bytes: int) -> bytes:
    """Reads the body of an answer; raises http.client.HTTPException if it is too large or ends too early."""
    found = bytearray()
    # For a chunk of negative size, `read` would read the rest of the connection, of any length.
    while piece := response.read1(PIECE):
        found += piece
        if len(found) > max_bytes:
            raise http.client.HTTPException(f"a reply of more than {max_bytes} bytes")
    if response.length:
        raise http.client.IncompleteRead(b"", response.length)
    response.close()
    return bytes(found)


class _Cutoff:
    """Ends an exchange at its deadline: its block then raises TimeoutError.

    Args:
        connection: the connection whose socket is shut down.
        limit_s: seconds that the block may take.
    """

    def __init__(self, connection: http.client.HTTPConnection, limit_s: float) -> None:
        self._connection, self._limit_s = connection, limit_s
        self.socket: socket.socket | None = None
        """The socket; `connection.sock` is None while the last answer of a connection is read."""
        self._is_over, self._is_late = threading.Event(), False
        self._thread = threading.Thread(target=self._run, name="xp-deadline", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        self._is_over.set()
        self._thread.join()
        if self._is_late and (error is None or isinstance(error, (OSError, http.client.HTTPException))):
            raise TimeoutError(f"no complete answer in {self._limit_s:g} s") from None

    def _run(self) -> None:
        if self._is_over.wait(self._limit_s):
            return
        self._is_late = True
        while not self._is_over.wait(REPEAT_S):
            for one in (self.socket, self._connection.sock):
                if one is not None:
                    with suppress(OSError):
                        # Not SSLSocket's own method: it removes the encryption while another thread reads.
                        socket.socket.shutdown(one, socket.SHUT_RDWR)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Turns a redirect into an HTTPError."""

    def redirect_request(self, *_: Any) -> None: ...


def direct_opener() -> urllib.request.OpenerDirector:
    """An opener that ignores the shell's proxies and follows no redirect, which could take a key elsewhere."""
    return urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect)
