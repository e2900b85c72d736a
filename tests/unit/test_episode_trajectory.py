"""The record of an episode and the file that holds it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.fake_session import FakeSession, call, episode_of, steady
from tests.support.recorded_episodes import a_record
from tests.support.sections import replace
from xp.envs.base import ToolResult
from xp.episode.trajectory import (
    TrajectoryWriter,
    read_trajectories,
    trajectory,
)


def test_each_distinct_list_of_tools_and_prompt_is_kept_once_beside_the_records(
    tmp_path: Path,
) -> None:
    one = '[{"function": {"name": "move"}, "type": "function"}]'
    same = '[{"type": "function", "function": {"name": "move"}}]'
    file = tmp_path / "trajectories" / "train.jsonl"
    with TrajectoryWriter(file) as writer:
        for tools, prompt in ((one, "ö"), (same, None), ("[]", "ö")):
            writer.write(replace(a_record(tools=tools), prompt=prompt))
    with TrajectoryWriter(file.with_name("train.rank_1.jsonl")) as writer:
        writer.write(a_record(tools=same))
    records = list(read_trajectories(file))
    assert records[0]["tools"] == records[1]["tools"] != records[2]["tools"]
    assert records[0]["prompt"] == records[2]["prompt"]
    assert records[1]["prompt"] is None
    kept = {path.stem: json.loads(path.read_text()) for path in (file.parent / "tools").iterdir()}
    assert kept == {records[0]["tools"]: json.loads(one), records[2]["tools"]: []}
    (prompt_file,) = (file.parent / "prompts").iterdir()
    assert (prompt_file.stem, prompt_file.read_text()) == (records[0]["prompt"], "ö")


def test_a_record_holds_the_whole_conversation_and_each_call(tmp_path: Path) -> None:
    with TrajectoryWriter(tmp_path / "t" / "0.jsonl") as writer:
        writer.write(a_record())
    (record,) = read_trajectories(tmp_path / "t" / "0.jsonl")
    assert [message["role"] for message in record["messages"]] == [
        "user",
        *["assistant", "tool"] * 3,
    ]
    first, malformed, won, ignored = record["tool_calls"]
    assert first["name"] == "move"
    assert first["arguments"] == {"to": "ö"}
    assert first["result"]["reward"] == 0.5
    assert malformed["turn"] == 1
    assert "malformed" in malformed
    assert won["result"]["finished"]
    assert "result" not in ignored
    assert [entry.get("message") for entry in record["tool_calls"]] == [2, 4, 6, None]
    assert record["outcome"]["status"] == "finished"
    assert record["outcome"]["reward"] == 1.5
    assert record["tokens"] == {"prompt": 9, "generated": 8, "observed": 7}
    assert len(record["env_s"]) == 3


def test_a_lone_surrogate_is_kept_as_an_escape(tmp_path: Path) -> None:
    with TrajectoryWriter(tmp_path / "0.jsonl") as writer:
        writer.write(a_record(text="\ud800 häßlich\u2028\n"))
    (record,) = read_trajectories(tmp_path / "0.jsonl")
    assert record["messages"][1]["content"].startswith("\ud800 häßlich\u2028\n")


def test_a_torn_line_costs_no_other(tmp_path: Path) -> None:
    file = tmp_path / "0.jsonl"
    whole = a_record(0).to_line()
    file.write_bytes(whole + whole[:100])
    assert [record["step"] for record in read_trajectories(file)] == [1]
    with TrajectoryWriter(file) as writer:
        writer.write(a_record(1))
    assert [record["step"] for record in read_trajectories(file)] == [1, 2]


def test_a_record_of_another_schema_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "0.jsonl"
    file.write_text(json.dumps({"schema_version": 99}) + "\n")
    with pytest.raises(ValueError, match=r"0\.jsonl:1: trajectory schema 99"):
        read_trajectories(file)


def test_an_answer_is_on_record_with_its_reward_and_is_no_call() -> None:
    session = FakeSession(steady, grade=lambda _: ToolResult("graded", 0.5, finished=True))
    episode = episode_of(session)
    for text in (call("look"), "42"):
        episode.step(text)
    episode.settle()
    made = trajectory(episode, run="", phase="train", step=0, sample=0, tools="[]")
    look, answer = json.loads(made.to_line())["tool_calls"]
    assert (answer["answer"], answer["result"]["reward"]) == (True, 0.5)
    assert "answer" not in look
