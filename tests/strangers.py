"""A process of another user that has taken a port of 127.0.0.1, and keeps every byte that it is sent."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

NOBODY = 65534
PROGRAM = """
import os, socket, sys, threading
port, answer, heard = int(sys.argv[1]), sys.argv[2].encode(), open(sys.argv[3], "ab", buffering=0)
os.setgroups([])
os.setgid({nobody})
os.setuid({nobody})
server = socket.create_server(("127.0.0.1", port))
print(server.getsockname()[1], flush=True)
def serve(line):
    while piece := line.recv(65536):
        heard.write(piece)
        line.sendall(answer)
while True:
    threading.Thread(target=serve, args=server.accept()[:1], daemon=True).start()
"""


class Stranger:
    """See above.

    Args:
        port: its port.
        heard: file of what it was sent.
    """

    def __init__(self, port: int, heard: Path) -> None:
        self.port, self._heard = port, heard
        self.url = f"http://127.0.0.1:{port}"

    @property
    def heard(self) -> bytes:
        return self._heard.read_bytes()


@contextmanager
def stranger(port: int = 0, body: str = "{}") -> Iterator[Stranger]:
    """Context of a stranger that answers everything with 200 and this body.

    Args:
        port: the port that it takes; 0: any.
        body: JSON.
    """
    if os.getuid() != 0:
        pytest.skip("only root can start a process of another user")
    answer = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}"
    with tempfile.NamedTemporaryFile() as heard:
        command = [sys.executable, "-I", "-S", "-c", PROGRAM.format(nobody=NOBODY), str(port), answer, heard.name]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                yield Stranger(int(process.stdout.readline()), Path(heard.name))
            finally:
                process.kill()


def say_hello(port: int) -> None:
    """Send one request, so that a test knows that the stranger keeps what it is sent."""
    with socket.create_connection(("127.0.0.1", port), 30) as line:
        line.sendall(b"hello")
        assert line.recv(10)
