"""A server on a socket that answers every request with the bytes of a test, whether they are HTTP or not."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress


def whole(body: bytes, status: str = "200 OK") -> list[bytes]:
    """A complete answer."""
    return [
        f"HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        + body
    ]


@contextmanager
def raw_server(pieces: Callable[[], Iterable[bytes]]) -> Iterator[str]:
    """Serve on a free port of 127.0.0.1 until the block ends; yields the address.

    Args:
        pieces: parts of one answer; it may wait between two of them.
    """
    listener = socket.create_server(("127.0.0.1", 0))

    def answer(connection: socket.socket) -> None:
        with suppress(OSError), connection:
            with connection.makefile("rb") as request:
                lines = list(iter(request.readline, b"\r\n"))
                sizes = [
                    int(line.split(b":")[1])
                    for line in lines
                    if line.lower().startswith(b"content-length:")
                ]
                request.read(sum(sizes))
            for piece in pieces():
                connection.sendall(piece)

    def accept() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                threading.Thread(target=answer, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.close()
