"""`python -m xp view`: a server of its own process, which answers whoever has the token and nobody else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.browser import Watched, chromium, needs_chromium
from tests.support.report_run import episode, make_evaluation, make_run, write_episodes
from tests.support.view_server import Server, served
from xp.__main__ import main
from xp.execution.record import RunStatus, read_record, write_record
from xp.execution.sweep import write_sweep

pytestmark = pytest.mark.integration
HOSTILE = "<img src=x onerror='window.hurt = 1'>"


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, two evaluations of the same tasks, a slower run with words of somebody else in its notes, and a sweep."""
    root = tmp_path_factory.mktemp("view")
    make_run(root, "run-one")
    slow = make_run(
        root,
        "slow",
        gain=0.0,
        num_steps=2,
        training__learning_rate=1e-5,
    )
    (slow / "notes.json").write_text(json.dumps({"tags": [HOSTILE], "note": HOSTILE}))
    make_evaluation(root, "mine-a", 0.4)
    make_evaluation(root, "mine-b", 0.9)
    write_sweep(root, ["training.learning_rate=1e-5,7e-4"], ["run-one", "slow"])
    return root


@pytest.fixture(scope="module")
def server(outputs: Path) -> Iterator[Server]:
    with served(outputs, "run-one") as found:
        yield found


@pytest.fixture(scope="module")
def start(outputs: Path) -> Iterator[Server]:
    """A server of the start page."""
    with served(outputs) as found:
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


def test_the_token_of_the_address_becomes_a_cookie_of_this_address(server: Server) -> None:
    status, headers, _ = server.get(f"/?token={server.token}", Cookie="")
    assert status == 303
    assert headers["location"] == "/"
    assert "HttpOnly" in headers["set-cookie"]
    assert "SameSite=strict" in headers["set-cookie"]


@pytest.mark.parametrize(
    "path",
    ["/", "/api/list", "/api/episode?run=0&row=0"],
)
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Cookie": ""}, 401),
        ({"Cookie": "xp_view_1=wrong"}, 401),
        ({"Host": "rebound.example"}, 421),
        ({"Origin": "http://rebound.example"}, 403),
    ],
)
def test_nobody_else_is_answered(
    server: Server, path: str, headers: dict[str, str], status: int
) -> None:
    found, _, body = server.get(path, **headers)
    assert found == status
    assert b"accuse" not in body
    assert b"run-one" not in body


def test_answers_forbid_other_scripts_other_hosts_and_frames(server: Server) -> None:
    status, headers, body = server.get("/")
    assert status == 200
    assert b"run-one" in body
    policy = headers["content-security-policy"]
    for rule in ("default-src 'none'", "connect-src 'self'", "frame-ancestors 'none'"):
        assert rule in policy
    assert "unsafe" not in policy


def test_an_episode_comes_when_it_is_asked_for(server: Server) -> None:
    assert server.json("/api/episode?run=0&row=0")["messages"][1]["content"].startswith(
        "I accuse number 0"
    )
    assert server.json("/api/search?run=0&text=NUMBER+19+in+evaluate%2Fafter")["rows"] != []
    for path in (
        "/api/episode?run=0&row=99999",
        "/api/episode?run=1&row=0",
        "/api/episode?run=0&row=../etc",
    ):
        status, _, body = server.get(path)
        assert status == 400
        assert b"there are" in body or b"whole number" in body


def test_the_environment_tells_the_right_answer_of_a_run_that_is_ones_own(
    start: Server, outputs: Path
) -> None:
    start.json("/api/run?name=run-one&run=0")
    path = "/api/task?name=run-one&run=0&row=0"
    assert '"split": "train"' in start.json(path)["text"]
    record = read_record(start.run)
    (start.run / "run.json").write_text(record.to_json().replace(f'"{outputs}', '"/of/somebody'))
    status, _, body = start.get(path)
    assert status == 400
    assert b"run-one was begun elsewhere, so its environment is not started" in body
    write_record(start.run, record)


def test_only_names_below_the_outputs_root_are_opened(start: Server, outputs: Path) -> None:
    status, _, body = start.get("/open?name=run-one&name=mine-a")
    assert status == 200
    assert b'"id":"mine-a"' in body
    for name in ("..", "runs%2Frun-one", str(outputs / "runs/run-one"), "nope"):
        status, _, body = start.get(f"/open?name={name}")
        assert status == 400
        assert b"there is no run or evaluation" in body


@needs_chromium
def test_the_start_page_lists_filters_and_follows_every_run(start: Server, browser: Any) -> None:
    watched = Watched(browser, viewport={"width": 1280, "height": 900})
    page = watched.page
    page.goto(f"http://127.0.0.1:{start.port}/?token={start.token}")
    row = page.locator("tr:has(a:text-is('run-one'))")
    row.locator(".badge:text-is('learned')").wait_for()
    assert row.locator("td.after").inner_text().split("\n") == ["0.500", "0.260 to 0.740"]
    assert "cpu" in row.inner_text()
    assert row.locator("svg.sparkline polyline").count() == 1
    assert page.locator("tbody tr").count() == 4
    assert "learning_rate 0.00" in row.locator(".point").inner_text()
    assert page.locator("header code").inner_text() == str(start.run.parents[1])
    assert (
        page.locator("tr:has(a:text-is('slow')) .own-note").inner_text()
        == "<img src=x onerror='window.hurt = 1'>"
    )
    assert page.evaluate("window.hurt") is None
    page.fill("#words", "learning_rate=1e-5")
    page.locator("tbody tr:has(a:text-is('run-one'))").wait_for(state="detached")
    assert page.locator("tbody tr a").all_inner_texts() == ["slow"]
    assert (
        main(
            ["runs", "tag", "run-one", "good", "--note", "kept", f"outputs={start.run.parents[1]}"]
        )
        == 0
    )
    page.fill("#words", "tag=go*")
    page.locator("tr:has(.tag:text-is('good')) .own-note:text-is('kept')").wait_for()
    page.fill("#words", "")
    page.select_option("#kind", "sweep")
    page.locator("tr a[href='open?name=run-one&name=slow']").wait_for()
    assert watched.problems == []
    page.close()


@needs_chromium
def test_a_run_that_goes_on_is_followed(server: Server, browser: Any) -> None:
    record = read_record(server.run)
    going = record.__class__(**{**record.__dict__, "status": RunStatus.RUNNING})
    attempt = going.attempts[-1]
    left = attempt.__class__(
        **{**attempt.__dict__, "status": RunStatus.RUNNING, "supervisor": None}
    )
    write_record(server.run, going.__class__(**{**going.__dict__, "attempts": (left,)}))
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
