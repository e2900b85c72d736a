"""An endpoint that fails at some dialogues and answers the others: void episodes, and how many of them are borne."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.stubs.chat_server import ChatServer, serving
from tests.support.child import json_lines
from tests.support.endpoint_evaluations import knows_some, result_in, words
from tests.support.modules import alone
from xp.__main__ import main
from xp.errors import ExitCode
from xp.results.evaluation.records import EPISODES


def breaks_off_at(share: int) -> ChatServer:
    """Closes the connection at every dialogue whose product is divisible by `share`, at each request."""

    def write(body: Mapping[str, Any]) -> dict[str, Any]:
        numbers = [int(text) for text in re.findall(r"\d+", body["messages"][-1]["content"])]
        if len(numbers) == 2 and numbers[0] * numbers[1] % share == 0:
            raise ConnectionAbortedError("a tool call that is no JSON")
        return knows_some(body) if numbers else {"content": "hello"}

    return ChatServer(write=write)


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An outputs root; its task set is made by the first evaluation."""
    return tmp_path_factory.mktemp("outputs")


def test_a_dropped_connection_makes_one_episode_void_and_others_count(outputs: Path) -> None:
    with serving(breaks_off_at(10)) as server:
        command = words(server, outputs, "evaluation.num_tasks=20", "model.max_attempts=2")
        assert main([*command, "training.max_void_fraction=0.9"]) == 0
    result = result_in(outputs)
    assert result["status"] == "finished"
    assert 0 < result["summary"]["num_void"] < 20
    assert result["summary"]["num_episodes"] == 20
    (file,) = (outputs / "evaluations").glob(f"*/{EPISODES}")
    outcomes = [json.loads(line)["outcome"] for line in file.read_text().splitlines()]
    void = [one for one in outcomes if one["reward"] is None]
    assert {one["status"] for one in void} == {"void"}
    assert all("it answers other dialogues" in one["void_reason"] for one in void)


def test_a_profile_of_void_episodes_alone_is_a_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(breaks_off_at(1)) as server:
        _, *more = words(server, tmp_path, "model.max_attempts=1")
        assert main(["tasks", "profile", *more, "--tries", "1"]) == ExitCode.UNHEALTHY
    told = capsys.readouterr()
    assert "every try was void" in told.out
    assert "1 of 1 episodes are void" in told.err


def repeats(body: Mapping[str, Any]) -> dict[str, Any]:
    """The number that the dialogue's last message names."""
    return {
        "content": " ".join(re.findall(r"Say (\d+)", body["messages"][-1]["content"])) or "hello"
    }


def test_a_changed_prompt_costs_no_request_and_a_live_one_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = alone("graders_under_test/drawn_rows", tmp_path, monkeypatch)
    own = [
        "env=graded",
        f"env.grader={module}:Dealt",
        f"env.rows={module}:rows",
        "env.held_out.num_tasks=9",
    ]
    with serving(ChatServer(write=repeats)) as server:
        command = [*words(server, tmp_path), *own]
        command.remove("env=multiply")
        assert main(command) == ExitCode.UNHEALTHY
        told = capsys.readouterr().err
        assert (
            told.count(
                "the environment's prompt is not the prepared one: message 2, content: expected 'Say "
            )
            == 1
        )
        assert "set env.prompt=live" in told
        assert not any("Say" in body["messages"][-1]["content"] for body in server.requests)
        shutil.rmtree(tmp_path / "evaluations")
        assert main([*command, "env.prompt=live"]) == ExitCode.OK
    assert result_in(tmp_path)["summary"]["reward"]["value"] == 1.0
    (file,) = (tmp_path / "evaluations").glob(f"*/{EPISODES}")
    records = json_lines(file)
    requested = {json.dumps(body["messages"]) for body in server.requests}
    assert all(json.dumps(record["messages"][:2]) in requested for record in records)
