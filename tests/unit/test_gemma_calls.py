"""Gemma's calls as models write them: its own quotes, those of JSON and those of Python, also within containers."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xp.envs.base import ToolSpec
from xp.episode.dialects import SYNTAX
from xp.episode.tool_calls import ToolCall
from xp.spec.dialect import Dialect

TOOL = ToolSpec("run", "", {"type": "object"})
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
VALUE = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT,
    lambda value: st.lists(value, max_size=3) | st.dictionaries(TEXT, value, max_size=3),
    max_leaves=6,
)


def calls(arguments: str) -> Any:
    return SYNTAX[Dialect.GEMMA].read(
        f"<|tool_call>call:run{arguments}<tool_call|>", lambda: (TOOL,)
    )


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{data_refs:["ds_15"]}', {"data_refs": ["ds_15"]}),
        ("{data_refs:['ds_15', 'b']}", {"data_refs": ["ds_15", "b"]}),
        ('{opts:{"mode": "fast"}}', {"opts": {"mode": "fast"}}),
        ("{opts:{'mode': 'fast', 'it''s': True}}", None),
        ('{"content": "has } brace"}', {"content": "has } brace"}),
        ("{a:it's,b:'it\\'s'}", {"a": "it's", "b": "it's"}),
        ('{a:<|"|>say "x", y<|"|>,b:"n"}', {"a": 'say "x", y', "b": "n"}),
        ("{path:'C:\\x'}", {"path": "C:\\x"}),
    ],
)
def test_quotes_of_json_and_python_are_no_part_of_a_text(arguments: str, expected: Any) -> None:
    (call,) = calls(arguments)
    assert (dict(call.arguments) if isinstance(call, ToolCall) else None) == expected


@given(st.dictionaries(TEXT, VALUE, max_size=3))
def test_arguments_in_json_or_python_are_read_back(arguments: dict[str, Any]) -> None:
    for text in (json.dumps(arguments), json.dumps(arguments, ensure_ascii=False), repr(arguments)):
        assert calls(text) == (ToolCall("run", arguments),)


@pytest.mark.parametrize("quote", ['"', "'", '<|"|>'])
@pytest.mark.parametrize("tag", ["<think>", "</think>", "a <think> b </think> c", "<tool_call|>"])
def test_a_tag_in_a_text_is_a_part_of_the_text(quote: str, tag: str) -> None:
    assert calls(f"{{a:{quote}{tag}{quote},b:1}}") == (ToolCall("run", {"a": tag, "b": 1}),)


def test_a_call_that_is_not_closed_hides_no_tag() -> None:
    read = SYNTAX[Dialect.GEMMA].read
    (call,) = read(
        "<|tool_call>call:run{a:[1</think><|tool_call>call:run{a:2}<tool_call|>", lambda: (TOOL,)
    )
    assert call == ToolCall("run", {"a": 2})
