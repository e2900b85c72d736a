"""Answers of an ORS server: each is a result or a fault, and never a score by mistake."""

from __future__ import annotations

import json

import pytest

from tests.support.tables import rows
from xp.envs import wire
from xp.envs.base import EnvFault, ProtocolError, ResponseLost, ToolResult, ToolSpec

TEXT = '{"type": "text", "text": "a"}'
THOUGHT = '{"type": "reasoning", "text": "b"}'
OUTPUT = f'{{"ok": true, "output": {{"blocks": [{TEXT}], "reward": 0.5, "finished": false}}}}'


@pytest.mark.parametrize(
    ("reply", "result"),
    [
        (OUTPUT, ToolResult("a", 0.5, False)),
        (OUTPUT.replace("false", "true").replace("0.5", "null"), ToolResult("a", None, True)),
        (OUTPUT.replace(TEXT, f"{TEXT}, {THOUGHT}"), ToolResult("a<think>b</think>", 0.5, False)),
        ('{"ok": false, "error": "no"}', ToolResult("no", is_call_error=True)),
        (
            '{"ok": false, "error": "no", "reason": "input_validation"}',
            ToolResult("no", is_call_error=True),
        ),
    ],
)
def test_an_answer_to_a_call_is_its_result(reply: str, result: ToolResult) -> None:
    assert wire.tool_result(json.loads(reply), "call") == result


@pytest.mark.parametrize(("reply", "words"), rows("ors_answers", ""))
def test_another_answer_to_a_call_is_a_fault(reply: str, words: list[str]) -> None:
    with pytest.raises(EnvFault, match=r"call.*: ") as caught:
        wire.tool_result(json.loads(reply), "call")
    assert words[0] in str(caught.value)
    assert type(caught.value) is (ResponseLost if "had finished" in words[0] else ProtocolError)


@pytest.mark.parametrize(
    ("terminal", "expected"),
    [
        ("null", None),
        ('{"name": "b"}', ("b", None)),
        ('{"name": "b", "arg": "text"}', ("b", "text")),
    ],
)
def test_the_tools_of_a_task_have_names_and_one_schema(
    terminal: str, expected: tuple[str, str | None] | None
) -> None:
    listing = f'{{"tools": [{PLAIN_TOOL}, {TOOL}], "terminal_tool": {terminal}}}'
    specs = (ToolSpec("a", "", {}), ToolSpec("b", "B", {"x": 1}))
    assert wire.tools(json.loads(listing), "tools") == (specs, expected)


PLAIN_TOOL = '{"name": "a", "description": null, "input_schema": null}'
TOOL = '{"name": "b", "description": "B", "input_schema": {"x": 1}}'


@pytest.mark.parametrize(
    "listing",
    [
        '{"tools": null}',
        f'{{"tools": [{TOOL}, {TOOL}]}}',
        '{"tools": [{"name": "b", "input_schema": [1]}]}',
        f'{{"tools": [{TOOL}], "terminal_tool": {{"name": "b", "arg": ""}}}}',
    ],
)
def test_another_list_of_tools_is_a_fault(listing: str) -> None:
    with pytest.raises(ProtocolError):
        wire.tools(json.loads(listing), "tools")


def test_the_scores_of_a_group_are_as_many_as_its_candidates() -> None:
    assert wire.scores({"scores": [{"reward": 1}, {"reward": 0.25}]}, 2, "group") == [1.0, 0.25]
    for answer in (
        {"scores": [{"reward": 1}]},
        {"scores": [{"reward": 1}, {}]},
    ):
        with pytest.raises(ProtocolError):
            wire.scores(answer, 2, "group")
    assert wire.count(7, "n") == 7
    for number in (-1, True, 1.0, None):
        with pytest.raises(ProtocolError):
            wire.count(number, "n")


DIALOGUE = """[
  {"role": "user", "content": "q"},
  {"role": "assistant", "content": "a", "tool_calls":
    [{"id": "c", "type": "function", "function": {"name": "look", "arguments": {"at": 1}}}]},
  {"role": "tool", "content": "r", "tool_call_id": "c"},
  {"role": "tool", "content": "s"}
]"""
RICH = """[
  {"role": "user", "blocks": [{"type": "text", "text": "q"}]},
  {"role": "assistant", "blocks": [{"type": "text", "text": "a"},
    {"type": "tool_call", "id": "c", "name": "look", "input": {"at": 1}}]},
  {"role": "user", "blocks":
    [{"type": "tool_result", "tool_call_id": "c", "blocks": [{"type": "text", "text": "r"}]}]},
  {"role": "user", "blocks": [{"type": "text", "text": "s"}]}
]"""
PLAIN = """[
  {"role": "user", "blocks": [{"type": "text", "text": "q"}]},
  {"role": "assistant", "blocks": [{"type": "text", "text": "a"}]},
  {"role": "user", "blocks": [{"type": "text", "text": "r"}]},
  {"role": "user", "blocks": [{"type": "text", "text": "s"}]}
]"""


def test_a_dialogue_is_written_for_a_group_as_the_server_reads_it() -> None:
    dialogue = json.loads(DIALOGUE)
    assert wire.blocks(dialogue, is_rich=True) == json.loads(RICH)
    assert wire.blocks(dialogue, is_rich=False) == json.loads(PLAIN)
