"""The record of an episode and the file that holds it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.recorded_episodes import a_record
from tests.support.sections import replace
from xp.episode.trajectory import (
    TrajectoryWriter,
    read_trajectories,
)


def test_each_distinct_list_of_tools_is_kept_once_beside_the_records(tmp_path: Path) -> None:
    move = {"function": {"name": "move"}, "type": "function"}
    look = {"function": {"name": "look"}, "type": "function"}
    same = json.dumps([dict(reversed(move.items())), look])
    file = tmp_path / "trajectories" / "train.jsonl"
    with (
        TrajectoryWriter(file) as one,
        TrajectoryWriter(file.with_name("train.rank_1.jsonl")) as two,
    ):
        for writer, tools in (
            (one, json.dumps([move, look])),
            (one, same),
            (two, same),
            (one, "[]"),
        ):
            writer.write(a_record(tools=tools))
        one.write(replace(a_record(), prompt="<|im_start|>system\nö"))
    last = read_trajectories(file)[-1]
    kept_prompts = {path.stem: path.read_text() for path in (file.parent / "prompts").iterdir()}
    assert kept_prompts == {last["prompt"]: "<|im_start|>system\nö"}
    digests = [record["tools"] for record in read_trajectories(file)[:-1]]
    assert digests[0] == digests[1] != digests[2]
    kept = {path.stem: json.loads(path.read_text()) for path in (file.parent / "tools").iterdir()}
    assert kept == {digests[0]: [move, look], digests[2]: []}


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
