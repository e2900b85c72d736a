"""A server of a run's own is replaced where it has ended or answers nothing, and left alone where it answers."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from xp.envs.server_watch import OwnServerWatch
from xp.errors import ExitCode, XpError

LIMIT_S = 250.0
"""Of the tests; nothing waits for it where all is well."""


class Watched:
    """A server as the watch sees it."""

    serve = "my_env:Env"

    def __init__(self, url: str, *, lives: bool = True, comes_up: bool = True) -> None:
        self.url, self._lives, self._comes_up = url, lives, comes_up
        self.replaced = threading.Event()
        self.num_questions = 0

    def is_alive(self) -> bool:
        self.num_questions += 1
        return self._lives

    def replace(self) -> None:
        self._lives = True
        self.replaced.set()
        if not self._comes_up:
            raise XpError("cannot serve my_env:Env", ExitCode.ENVIRONMENT)


class NotFound(BaseHTTPRequestHandler):
    asked = threading.Event()

    def do_GET(self) -> None:
        self.send_error(404)
        if self.headers["X-API-Key"] == "key":
            NotFound.asked.set()

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def silent() -> Iterator[str]:
    """Takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def watch_of(server: Watched, limit_s: float = 0.1) -> OwnServerWatch:
    watch = OwnServerWatch(server, {"X-API-Key": "key"}, limit_s, 0.01)
    watch.start()
    return watch


def test_a_server_that_takes_requests_and_answers_none_is_replaced(silent: str) -> None:
    server = Watched(silent)
    watch = watch_of(server)
    assert server.replaced.wait(LIMIT_S)
    watch.stop()


def test_a_server_that_has_ended_is_replaced(silent: str) -> None:
    server = Watched(silent, lives=False)
    watch = watch_of(server, limit_s=LIMIT_S)
    assert server.replaced.wait(LIMIT_S)
    watch.stop()


def test_a_server_that_answers_whatever_it_says_is_left_alone() -> None:
    with HTTPServer(("127.0.0.1", 0), NotFound) as there:
        threading.Thread(target=there.serve_forever, daemon=True).start()
        server = Watched(f"http://127.0.0.1:{there.server_port}")
        watch = watch_of(server, limit_s=LIMIT_S)
        assert NotFound.asked.wait(LIMIT_S), "the question says the key"
        NotFound.asked.clear()
        assert NotFound.asked.wait(LIMIT_S), "and is asked again"
        watch.stop()
        there.shutdown()
    assert not server.replaced.is_set()


def test_one_that_does_not_come_up_again_is_given_up(silent: str, caplog: pytest.LogCaptureFixture) -> None:
    server = Watched(silent, lives=False, comes_up=False)
    watch = watch_of(server)
    watch.join(LIMIT_S)
    assert server.num_questions == 1
    assert "cannot serve my_env:Env" in caplog.text
