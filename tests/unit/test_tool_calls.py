"""What a model may write, and what it is read as."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xp.episode.dialects import SYNTAX
from xp.episode.tool_calls import MalformedCall, ParsedCall, ToolCall, read_json
from xp.spec.dialect import Dialect

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


def parse_hermes(text: str) -> tuple[ParsedCall, ...]:
    return SYNTAX[Dialect.HERMES].read(text, tuple)


def test_a_call_between_its_tags_is_read() -> None:
    text = 'First I look.\n<tool_call>\n{"name": "look", "arguments": {"at": "döor"}}\n</tool_call>'
    assert parse_hermes(text) == (ToolCall("look", {"at": "döor"}),)


@pytest.mark.parametrize("end", ["", "\n", "</tool_call>", "</tool_call>\n<|im_end|>"])
def test_the_closing_tag_may_be_what_ended_the_turn(end: str) -> None:
    assert parse_hermes('<tool_call>{"name": "a", "arguments": {}}' + end) == (ToolCall("a", {}),)


def test_a_doubled_opening_tag_opens_one_call() -> None:
    assert parse_hermes('<tool_call>\n<tool_call>{"name":"a"}</tool_call>') == (ToolCall("a", {}),)


def test_text_without_a_call_is_no_call() -> None:
    assert parse_hermes('{"name": "a", "arguments": {}}') == ()
    assert parse_hermes("") == ()


def test_a_call_that_was_only_thought_of_is_no_call() -> None:
    thought = '<think>I could <tool_call>{"name":"no"}</tool_call></think>'
    assert parse_hermes(thought + '<tool_call>{"name":"yes"}</tool_call>') == (ToolCall("yes", {}),)
    assert parse_hermes('<think>never ends <tool_call>{"name":"no"}</tool_call>') == ()
    assert parse_hermes('opened in the prompt <tool_call>{"name":"no"}</tool_call></think> done') == ()


@pytest.mark.parametrize(
    "body",
    [
        "[1,2]", '"x"', "null", "1", "{}", '{"name": null}', '{"name": ""}', '{"name": 5, "arguments": {}}', "",
        '{"name": "a", "arguments": [1]}', '{"name": "a", "arguments": "x"}',
        '{"name": "a", "arguments": {"x": NaN}}', '{"name": "a", "arguments": {"x": 1e999}}',
        '{"name": "a", "name": "b"}', '{"name": "\\ud800"}', "[" * 100_000, '{"name": "a",', "{'name': 'a'}",
        '{"name": "a", "arguments": {"x": -Infinity}}', '{"a":' * 50_000,
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_described_and_never_raises(body: str) -> None:
    (found,) = parse_hermes(f"<tool_call>{body}</tool_call>")
    assert isinstance(found, MalformedCall)
    assert 10 < len(found.fault) < 200


def test_a_value_of_twenty_thousand_lists_is_told() -> None:
    assert read_json("[" * 20_000) == MalformedCall("the tool call is nested too deeply")


@pytest.mark.parametrize("arguments", ["", ', "arguments": {}', ', "arguments": null', ', "arguments": "{}"'])
def test_a_call_without_arguments_is_one_call_however_they_are_left_out(arguments: str) -> None:
    assert parse_hermes(f'<tool_call>{{"name": "a"{arguments}}}</tool_call>') == (ToolCall("a", {}),)


def test_arguments_written_as_a_json_string_are_read() -> None:
    text = '<tool_call>{"name": "a", "arguments": "{\\"x\\": 1}"}</tool_call>'
    assert parse_hermes(text) == (ToolCall("a", {"x": 1}),)


@settings(max_examples=200, deadline=None)
@given(st.text('aö \n"{}\\u2028', min_size=1, max_size=9), st.dictionaries(st.text(max_size=8), JSON, max_size=4))
def test_every_legal_call_is_read_back_as_it_was(name: str, arguments: dict[str, Any]) -> None:
    body = json.dumps({"name": name, "arguments": arguments}).replace(">", "\\u003e")
    assert parse_hermes(f"<tool_call>{body}</tool_call>") == (ToolCall(name, arguments),)
