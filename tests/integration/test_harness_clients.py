"""What real clients send beside the model's requests, their tools by MCP, and what is left out of a training."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.support.fake_session import call
from tests.support.harbor_tasks import write_task
from tests.support.harness_programs import OPTIONS, PROGRAMS, SHELL, harness, play, play_on
from xp.contrib.contracts.provider import lent
from xp.contrib.harness.provider import HarnessOptions, HarnessProvider
from xp.envs.base import Provider, Task
from xp.envs.config import load_provider
from xp.episode.outcome import EpisodeStatus

FINISHED = EpisodeStatus.FINISHED
TRUNCATED = EpisodeStatus.TRUNCATED
SDK = Path(os.environ.get("NODE_PATH", "/none"), "@modelcontextprotocol/sdk")
HELLO = call("bash", command="echo hello > hello.txt")
pytestmark = pytest.mark.integration


@pytest.fixture(autouse=True)
def path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tasks")
    write_task(folder / "a")
    return folder


ECHO = harness(
    None,
    serve="xp.envs.builtin.echo:Echo",
    options={"command": "python {program}/tools_agent.py {prompt_file}"},
)
"""A program that plays an ORS server's task."""


@pytest.fixture(scope="module")
def echo() -> Iterator[Provider]:
    yield from lent(load_provider(ECHO, os.environ))


@pytest.fixture(scope="module")
def session(echo: Provider) -> Iterator[Any]:
    """A session whose program waits for the policy."""
    with closing(echo.open(Task("x", "train", 0))) as opened:
        yield opened


def answered(
    session: Any, method: str, path: str, body: Any = None
) -> tuple[int, Mapping[str, str], Any]:
    """Status, headers and JSON of the endpoint's answer."""
    connection = http.client.HTTPConnection(urlsplit(session._server.url).netloc)
    data = None if body is None else json.dumps(body)
    with closing(connection):
        connection.request(method, path, data, {"x-api-key": session._key})
        answer = connection.getresponse()
        text = answer.read()
        value = json.loads(text) if text else None
        return answer.status, dict(answer.headers), value


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        *[("HEAD", "/", 200), ("GET", "/v1/models/policy", 200), ("GET", "/mcp", 405)],
        *[("POST", "/v1/traces", 404), ("GET", "/v1/embeddings", 404)],
    ],
)
def test_a_probe_or_telemetry_is_answered_and_is_no_refused_request(
    session: Any, method: str, path: str, status: int
) -> None:
    session._channel.refused = None
    code, headers, _ = answered(session, method, path, {} if method == "POST" else None)
    assert code == status
    assert ("Allow" in headers) is (status == 405)
    assert session._channel.refused is None


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1beta/models/policy:generateContent"])
def test_a_request_to_another_models_api_is_refused(session: Any, path: str) -> None:
    assert answered(session, "POST", path, {})[0] == 404
    assert path in session._channel.refused
    session._channel.refused = None


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ({"id": 1, "method": "prompts/list"}, -32601),
        ({"id": 1, "method": "tools/call", "params": {"name": "echo", "arguments": [1]}}, -32602),
        ("no request", -32600),
    ],
)
def test_an_optional_or_wrong_method_of_mcp_has_the_protocols_error(
    session: Any, message: Any, code: int
) -> None:
    status, _, value = answered(session, "POST", "/mcp", message)
    assert status == 200
    assert value["error"]["code"] == code
    assert session._tool_server.fault is None


NO = call("echo", text="no")
YES = call("echo", text="hello")


@pytest.mark.parametrize(
    ("turns", "status", "reward"),
    [
        ([NO, YES, "Done."], FINISHED, 1.0),
        ([NO, "I give up."], FINISHED, 0.0),
        # A limit ends the program.
        ([YES], FINISHED, 1.0),
        ([NO], TRUNCATED, 0.0),
    ],
)
def test_the_tools_of_a_server_are_the_programs_and_the_reward_is_the_sessions(
    echo: Provider, turns: list[str], status: EpisodeStatus, reward: float
) -> None:
    outcome, episode = play_on(echo, ECHO, *turns)
    assert outcome.status == status
    assert outcome.reward == reward
    assert [turn.messages[0]["content"] for turn in episode.turns if turn.messages] == [
        {NO: "no match", YES: "match"}[text] for text in turns if text in (NO, YES)
    ]


def test_the_published_mcp_client_wins_a_finished_episode() -> None:
    if not SDK.exists():
        pytest.skip("needs @modelcontextprotocol/sdk in NODE_PATH: make test-programs")
    options = {
        "command": "node {program}/mcp_agent.cjs {prompt_file}",
        "env": {"NODE_PATH": str(SDK.parents[1])},
        "program": str(PROGRAMS),
    }
    config = harness(
        None, serve="xp.envs.builtin.echo:Echo", options=options, retries_per_episode=0
    )
    for more in ([], ["Done."]):
        outcome, _ = play(config, call("echo", text="hello"), *more)
        assert outcome.status == FINISHED
        assert outcome.reward == 1.0
    outcome, _ = play(config, call("echo", text="no"), "I give up.")
    assert outcome.status == FINISHED
    assert outcome.reward == 0.0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("agent", "name", "tool"),
    [
        ("codex", "codex", "mcp__env__echo"),
        ("claude-code", "claude", "mcp__env__echo"),
        ("opencode", "opencode", "env_echo"),
    ],
)
def test_a_published_program_gets_a_sessions_tools(agent: str, name: str, tool: str) -> None:
    if shutil.which(name) is None:
        pytest.skip(f"needs {agent} on the PATH: make test-programs")
    options = {"agent": agent, "command": None, "program": None}
    config = harness(
        None, serve="xp.envs.builtin.echo:Echo", options=options, retries_per_episode=0
    )
    outcome, episode = play(config, call(tool, text="hello"), "Done.")
    assert outcome.status == FINISHED
    assert outcome.reward == 1.0
    assert outcome.num_turns == 2
    assert "match" in episode.turns[0].messages[0]["content"]


def test_a_grading_script_is_found_and_copied_where_the_program_does_not_see_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rows.jsonl").write_text(json.dumps({"prompt": "Six?", "answer": "6"}) + "\n")
    Path("my_grade.py").write_text(
        "import json, sys\nrow, answer = map(open, sys.argv[1:])\n"
        "sys.exit(json.load(row)['answer'] != answer.read())\n"
    )
    grade = "python my_grade.py {row_file} {answer_file}"
    read = HarnessOptions(**{**OPTIONS, "grade": grade})
    assert read.grader == str(tmp_path / "my_grade.py")
    config = harness(None, rows=str(tmp_path / "rows.jsonl"), options=read.model_dump())
    before = HarnessProvider.source_digest(config)
    seen, episode = play(config, call("bash", command="ls -R $XP_ROOT"), "6")
    assert seen.status == FINISHED
    assert seen.reward == 1.0
    assert "my_grade" not in episode.turns[0].messages[0]["content"]
    assert play(config, "7")[0].reward == 0.0
    Path("my_grade.py").write_text("")
    assert HarnessProvider.source_digest(config) != before


@pytest.mark.parametrize("is_trained", [True, False])
def test_requests_beside_the_programs_loop_can_be_left_out_of_a_training(
    tasks: Path, is_trained: bool
) -> None:
    options = {"command": f"{SHELL} title", "max_rows": 2, "train_auxiliary": is_trained}
    outcome, episode = play(harness(tasks, options=options), "A title", HELLO, "Done.")
    assert outcome.status == FINISHED
    assert outcome.reward == 1.0
    assert outcome.grader["program_auxiliary"] == 1.0
    assert outcome.grader["program_rows"] == (2.0 if is_trained else 1.0)
    assert episode.undelivered == (() if is_trained else (0,))
