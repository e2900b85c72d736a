"""`python -m xp view`: a server of its own process, which answers whoever has the token and nobody else."""

from __future__ import annotations

import http.client
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.browser import Watched, chromium, needs_chromium
from tests.report_run import episode, make_run, write_episodes
from xp.run_records.record import RunStatus, read_record, write_record
from xp.testing.jobs import PATIENCE_S

pytestmark = pytest.mark.integration


@dataclass
class Server:
    """A running `view`."""

    run: Path
    port: int
    token: str

    def get(self, path: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        own = {"Host": f"127.0.0.1:{self.port}", "Cookie": f"xp_view_{self.port}={self.token}"}
        connection.request("GET", path, headers=own | headers)
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()

    def json(self, path: str) -> Any:
        status, _, body = self.get(path)
        assert status == 200, body
        return json.loads(body)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    outputs = tmp_path_factory.mktemp("view")
    run = make_run(outputs, "run-one")
    command = [sys.executable, "-m", "xp", "view", "run-one", f"outputs={outputs}"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        found = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/\?token=(\S+)\n", process.stdout.readline())
        assert found is not None
        yield Server(run, int(found[1]), found[2])
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


def test_the_token_of_the_address_becomes_a_cookie_of_this_address(server: Server) -> None:
    status, headers, _ = server.get(f"/?token={server.token}", Cookie="")
    assert (status, headers["location"]) == (303, "/")
    assert "HttpOnly" in headers["set-cookie"]
    assert "SameSite=strict" in headers["set-cookie"]


@pytest.mark.parametrize("path", ["/", "/api/run?run=0", "/api/episode?run=0&row=0", "/api/search?run=0&text=a"])
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Cookie": ""}, 401),
        ({"Cookie": "xp_view_1=wrong"}, 401),
        ({"Host": "rebound.example"}, 421),
        ({"Origin": "http://rebound.example"}, 403),
    ],
)
def test_nobody_else_is_answered(server: Server, path: str, headers: dict[str, str], status: int) -> None:
    found, _, body = server.get(path, **headers)
    assert found == status
    assert b"accuse" not in body


def test_answers_forbid_other_scripts_other_hosts_and_frames(server: Server) -> None:
    status, headers, body = server.get("/")
    assert status == 200
    assert b"run-one" in body
    policy = headers["content-security-policy"]
    for rule in ("default-src 'none'", "connect-src 'self'", "frame-ancestors 'none'"):
        assert rule in policy
    assert "unsafe" not in policy


def test_an_episode_comes_when_it_is_asked_for(server: Server) -> None:
    assert server.json("/api/episode?run=0&row=0")["messages"][1]["content"].startswith("I accuse number 0")
    assert server.json("/api/search?run=0&text=NUMBER+19+in+evaluate%2Fafter")["rows"] != []
    for path in ("/api/episode?run=0&row=99999", "/api/episode?run=1&row=0", "/api/episode?run=0&row=../etc"):
        status, _, body = server.get(path)
        assert status == 400
        assert b"there are" in body or b"whole number" in body


@needs_chromium
def test_a_run_that_goes_on_is_followed(server: Server) -> None:
    record = read_record(server.run)
    going = record.__class__(**{**record.__dict__, "status": RunStatus.RUNNING})
    attempt = going.attempts[-1]
    left = attempt.__class__(**{**attempt.__dict__, "status": RunStatus.RUNNING, "supervisor": None})
    write_record(server.run, going.__class__(**{**going.__dict__, "attempts": (left,)}))
    with chromium() as browser:
        watched = Watched(browser)
        page = watched.open(f"http://127.0.0.1:{server.port}/?token={server.token}")
        write_episodes(
            server.run / "attempt_1/train/trajectories/train.jsonl",
            [episode("train", 8, 3, 0, 1.0, said="I came later.")],
        )
        page.wait_for_selector(".figure:has-text('episodes') .value:text-is('73')")
        page.evaluate("XP.go({phase: 'train', step: 9})")
        page.locator(".chip").first.click()
        page.wait_for_selector(".message.assistant:has-text('I came later.')")
        assert watched.problems == []
        assert {request.split("/")[2] for request in watched.requests} == {f"127.0.0.1:{server.port}"}
