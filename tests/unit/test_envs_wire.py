"""Answers of an ORS server: each is a result or a fault, and never a score by mistake."""

from __future__ import annotations

import math
from typing import Any

import pytest

from xp.envs import wire
from xp.envs.base import EnvFault, ProtocolError, ResponseLost, Task, ToolResult, ToolSpec

TEXT = [{"type": "text", "text": "a"}]
THOUGHT = [*TEXT, {"type": "reasoning", "text": "b"}]
OUTPUT = {"blocks": TEXT, "reward": 0.5, "finished": False}


@pytest.mark.parametrize(
    ("reply", "result"),
    [
        ({"ok": True, "output": OUTPUT}, ToolResult("a", 0.5, False)),
        (
            {"ok": True, "output": {**OUTPUT, "reward": None, "finished": True}},
            ToolResult("a", None, True),
        ),
        (
            {"ok": True, "output": {**OUTPUT, "blocks": THOUGHT}},
            ToolResult("a<think>b</think>", 0.5, False),
        ),
        ({"ok": True, "output": {**OUTPUT, "blocks": [], "reward": 1}}, ToolResult("", 1.0, False)),
        ({"ok": False, "error": "no"}, ToolResult("no", is_call_error=True)),
        ({"ok": False, "error": "no", "reason": "not_found"}, ToolResult("no", is_call_error=True)),
        (
            {"ok": False, "error": "no", "reason": "input_validation"},
            ToolResult("no", is_call_error=True),
        ),
    ],
)
def test_an_answer_to_a_call_is_its_result(reply: Any, result: ToolResult) -> None:
    assert wire.tool_result(reply, "call") == result


@pytest.mark.parametrize(
    ("reply", "text"),
    [
        ({"ok": False, "error": "no", "reason": "episode_finished"}, "the episode had finished"),
        ({"ok": False, "error": "no", "reason": "rate"}, "the call was refused for 'rate'"),
        ({"ok": False}, "error is NoneType 'None'"),
        ({"ok": 1, "output": OUTPUT}, "ok is int '1'"),
        ({"ok": True}, "an object is NoneType"),
        ({"ok": None, "error": "no"}, "ok is NoneType"),
        ({"ok": False, "error": 5, "reason": None}, "error is int '5'"),
        ({"ok": False, "error": "no", "reason": "mood"}, "'mood', which is no fault of the model"),
        ({"ok": True, "output": {**OUTPUT, "finished": 0}}, "finished is int '0'"),
        ({"ok": True, "output": {"blocks": [], "finished": True}}, "the reply has no reward"),
        ({"ok": True, "output": {**OUTPUT, "reward": True}}, "reward is bool 'True'"),
        ({"ok": True, "output": {**OUTPUT, "reward": "1"}}, "reward is str '1'"),
        ({"ok": True, "output": {**OUTPUT, "reward": "nan"}}, "the reward is nan"),
        ({"ok": True, "output": {**OUTPUT, "reward": 10**400}}, "the reward is inf"),
        ({"ok": True, "output": {**OUTPUT, "blocks": "a"}}, "blocks is str"),
        ({"ok": True, "output": {**OUTPUT, "blocks": ["a"]}}, "an object is str"),
        ({"ok": True, "output": {"blocks": [], "reward": 1.0}}, "finished is NoneType"),
        ({"ok": True, "output": {**OUTPUT, "reward": math.inf}}, "the reward is inf"),
        ({"ok": True, "output": {**OUTPUT, "blocks": [{"type": "text"}]}}, "text is NoneType"),
        (
            {"ok": True, "output": {**OUTPUT, "blocks": [{"type": "image", "mimeType": "x/y"}]}},
            r"an image \(x/y\)",
        ),
        (
            {"ok": True, "output": {**OUTPUT, "blocks": [{"type": "audio"}]}},
            "type of a block is str 'audio'",
        ),
        ([], "an object is list"),
    ],
)
def test_another_answer_to_a_call_is_a_fault(reply: Any, text: str) -> None:
    with pytest.raises(EnvFault, match=f"call.*: .*{text}") as caught:
        wire.tool_result(reply, "call")
    assert type(caught.value) is (ResponseLost if "had finished" in text else ProtocolError)


def test_the_tools_of_a_task_have_names_and_one_schema() -> None:
    one = {"name": "a", "description": None, "input_schema": None}
    other = {"name": "b", "description": "B", "input_schema": {"x": 1}}
    specs = (ToolSpec("a", "", {}), ToolSpec("b", "B", {"x": 1}))
    for terminal, expected in (
        (None, None),
        ({"name": "b"}, ("b", None)),
        ({"name": "b", "arg": "text"}, ("b", "text")),
    ):
        assert wire.tools({"tools": [one, other], "terminal_tool": terminal}, "tools") == (
            specs,
            expected,
        )
    assert wire.tool_specs([{**other, "inputSchema": {"y": 2}}], "t") == (
        ToolSpec("b", "B", {"y": 2}),
    )
    for listing in (
        {"tools": None},
        {"tools": [one, one]},
        {"tools": [{"name": ""}]},
        {"tools": [{**other, "input_schema": [1]}]},
        {"tools": [one], "terminal_tool": {"name": None}},
        {"tools": [one], "terminal_tool": {"name": "a", "arg": ""}},
    ):
        with pytest.raises(ProtocolError):
            wire.tools(listing, "tools")


def test_the_scores_of_a_group_are_as_many_as_its_candidates() -> None:
    assert wire.scores({"scores": [{"reward": 1}, {"reward": 0.25}]}, 2, "group") == [1.0, 0.25]
    for answer in (
        {"scores": [{"reward": 1}]},
        {"scores": [{"reward": 1}, {}]},
        {"scores": None},
        [1, 2],
    ):
        with pytest.raises(ProtocolError):
            wire.scores(answer, 2, "group")
    assert [wire.count(number, "n") for number in (0, 7)] == [0, 7]
    for number in (-1, True, 1.0, "1", None):
        with pytest.raises(ProtocolError):
            wire.count(number, "n")
    with pytest.raises(ProtocolError, match="a negative index"):
        wire.check_index(Task("e", "train", -1))
    wire.check_index(Task("e", "train", 0))


def test_a_dialogue_is_written_for_a_group_as_the_server_reads_it() -> None:
    call: Any = {
        "id": "c",
        "type": "function",
        "function": {"name": "look", "arguments": {"at": 1}},
    }
    dialogue: Any = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "a", "tool_calls": [call]},
        {"role": "tool", "content": "r", "tool_call_id": "c"},
        {"role": "tool", "content": "s"},
    ]

    def text(content: str) -> dict[str, str]:
        return {"type": "text", "text": content}

    block = {"type": "tool_call", "id": "c", "name": "look", "input": {"at": 1}}
    rich = [
        {"role": "user", "blocks": [text("q")]},
        {"role": "assistant", "blocks": [text("a"), block]},
        {
            "role": "user",
            "blocks": [{"type": "tool_result", "tool_call_id": "c", "blocks": [text("r")]}],
        },
        {"role": "user", "blocks": [text("s")]},
    ]
    assert wire.blocks(dialogue, is_rich=True) == rich
    plain = [
        ("user", "q"),
        ("assistant", "a"),
        ("user", "r"),
        ("user", "s"),
    ]
    assert wire.blocks(dialogue, is_rich=False) == [
        {"role": role, "blocks": [text(one)]} for role, one in plain
    ]
