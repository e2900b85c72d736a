"""Arguments that hold tags: they reach the tool as the model wrote them, in every dialect."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.test_dialects import LOOK, read
from xp.envs.base import ToolSpec
from xp.envs.config import Dialect
from xp.episode.dialects import SYNTAX
from xp.episode.tool_calls import Malformed, ToolCall, parse_hermes

TAGS = [
    "<think>", "</think>", "<think>x</think>", "<tool_call>", "</tool_call>", '<tool_call>{"name": "no"}</tool_call>',
    "<action>", "</action>", "<function=no>", "</function>", "<parameter=no>", "</parameter>", "<parameter=count>",
    "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "<arg_key>count</arg_key>",
    "<|python_tag|>", "[no(x=1)]", '{"name": "no", "parameters": {}}', "<|start|>", "<|end|>", "<|call|>",
    "<|message|>", " to=functions.no", "\\[ f(2) \\]", "'", '"', "\\", "\n", "{", "}", ")]", "\u2028",
]  # fmt: skip
ENDS = {
    Dialect.QWEN_XML: re.compile(r"</parameter>\s*(<parameter=|</function>|</tool_call>)"),
    Dialect.GLM: re.compile(r"</arg_value>\s*(<arg_key>|</tool_call>)"),
}
"""Ends of a value in dialects that have no escapes; nothing tells whether they are a part of it."""
REFUSED = {
    Dialect.QWEN_XML: re.compile(
        r"<parameter=(count|share)>|(</function>|</tool_call>)(?s:.*)(<function=|<tool_call>)"
    ),
    Dialect.GLM: re.compile(r"<arg_key>(count|share)</arg_key>\s*<arg_value>|</tool_call>(?s:.*)<tool_call>"),
}
"""Beginnings of another argument or call within a value: more probably it was not closed."""
ANYTHING = (
    st.lists(st.sampled_from(TAGS) | st.text(max_size=6), max_size=6)
    .map("".join)
    .filter(lambda text: text.encode("utf-8", "ignore").decode() == text)
)
ACT = ToolSpec("look", "Look.", {**LOOK.parameters, "required": ["text"]})


def survives(dialect: Dialect, text: str) -> bool:
    """Whether a dialect can write the text at all."""
    return dialect not in ENDS or not (ENDS[dialect].search(text) or REFUSED[dialect].search(text))


def written_and_read(dialect: Dialect, arguments: dict[str, Any], before: str = "", after: str = "") -> Any:
    return read(dialect, before + SYNTAX[dialect].write("look", arguments) + after, (ACT,))


@pytest.mark.parametrize("dialect", list(SYNTAX))
@pytest.mark.parametrize("text", TAGS)
def test_a_tag_in_an_argument_is_a_part_of_it(dialect: Dialect, text: str) -> None:
    if survives(dialect, text):
        arguments = {"text": f"a {text} b", "options": {"k": [text]}}
        assert written_and_read(dialect, arguments) == (ToolCall("look", arguments),)


@settings(max_examples=100, deadline=None)
@given(ANYTHING)
def test_what_is_written_is_read_back_whatever_the_text(text: str) -> None:
    for dialect in SYNTAX:
        if survives(dialect, text):
            assert written_and_read(dialect, {"text": text}) == (ToolCall("look", {"text": text}),), dialect


@pytest.mark.parametrize("dialect", [dialect for dialect in SYNTAX if dialect is not Dialect.HARMONY])
@pytest.mark.parametrize("text", ["<think>x</think>", "</think>", "<think>"])
def test_thinking_before_a_call_is_no_part_of_it(dialect: Dialect, text: str) -> None:
    draft = SYNTAX[dialect].write("look", {"text": "draft"})
    expected = (ToolCall("look", {"text": text}),)
    assert written_and_read(dialect, {"text": text}, f"<think>I try {draft}</think>\n") == expected
    assert written_and_read(dialect, {"text": text}, f"opened in the prompt, I try {draft}</think>\n") == expected
    assert written_and_read(dialect, {"text": text}, after="</think>no call") == ()


@pytest.mark.parametrize("dialect", [Dialect.HERMES, Dialect.QWEN_XML, Dialect.GLM])
def test_a_closing_tag_in_an_argument_does_not_hide_the_next_call(dialect: Dialect) -> None:
    text = SYNTAX[dialect].write("look", {"text": "</tool_call>"}) + SYNTAX[dialect].write("look", {"text": "b"})
    assert read(dialect, text) == (ToolCall("look", {"text": "</tool_call>"}), ToolCall("look", {"text": "b"}))


def test_a_tag_outside_of_the_json_text_keeps_its_meaning() -> None:
    assert parse_hermes('<tool_call>{"name": <think>hm</think> "a"}</tool_call>') == (ToolCall("a", {}),)
    assert parse_hermes('<tool_call>{"name": "a"}<think>hm</think></tool_call>') == (ToolCall("a", {}),)
    assert parse_hermes('I try <tool_call>{oops </think><tool_call>{"name": "b"}') == (ToolCall("b", {}),)
    (found,) = parse_hermes('<tool_call>{"name": "a"} and more</tool_call>')
    assert isinstance(found, Malformed)


def test_a_function_without_tags_around_it_may_hold_them() -> None:
    text = "<function=look>\n<parameter=text>\n<tool_call> <think>\n</parameter>\n</function>"
    assert read(Dialect.QWEN_XML, text) == (ToolCall("look", {"text": "<tool_call> <think>"}),)


@pytest.mark.parametrize("dialect", ENDS)
@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from([*TAGS, "x"]), max_size=4).map("".join))
def test_a_value_that_a_dialect_cannot_write_is_whole_or_malformed(dialect: Dialect, text: str) -> None:
    if not ENDS[dialect].search(text):
        for call in written_and_read(dialect, {"text": text, "share": 0.5}):
            assert call == ToolCall("look", {"text": text, "share": 0.5}) or isinstance(call, Malformed)


def test_a_value_that_is_not_closed_is_not_half_read() -> None:
    for text in (
        "<tool_call><function=look><parameter=text>a<parameter=count>1</parameter></function></tool_call>",
        "<tool_call><function=look><parameter=text>a</function></tool_call>",
        "<tool_call><function=look><parameter=text>a",
    ):
        (found,) = read(Dialect.QWEN_XML, text)
        assert isinstance(found, Malformed)
    text = "<tool_call><function=look><parameter=text>a</function></tool_call><tool_call><function=go></function>"
    assert read(Dialect.QWEN_XML, text)[1] == ToolCall("go", {})


@pytest.mark.parametrize("text", [r"\[ f(2) = 4 \]", r"So \[f(2)\]", r"\[ g(x, y) \] and [1]"])
def test_a_formula_of_latex_is_no_call(text: str) -> None:
    assert read(Dialect.PYTHONIC, text) == ()
    assert read(Dialect.PYTHONIC, f"{text} [look()]") == (ToolCall("look", {}),)


LONG = [
    '<tool_call>{"', '<tool_call>{"a": "', '<tool_call>{"a', '<tool_call>{"name": "a"}', '{"name": "', "[a(x='",
    "[a()]",
    "<parameter=a>", "<parameter=a></parameter>", "<arg_value>", "<|message|>{", '<action>{"', '<action>{"a": 1}',
]  # fmt: skip


@pytest.mark.parametrize("piece", LONG)
@pytest.mark.parametrize("dialect", list(SYNTAX))
def test_many_beginnings_of_data_are_read_in_no_time(dialect: Dialect, piece: str) -> None:
    text = piece * (500_000 // len(piece))
    began = time.process_time()
    read(dialect, text)
    assert time.process_time() - began < 2.0


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.text(max_size=8), ANYTHING, max_size=4))
def test_names_of_arguments_may_hold_tags_where_a_call_is_json(arguments: dict[str, str]) -> None:
    for dialect in (Dialect.HERMES, Dialect.LLAMA_JSON, Dialect.HARMONY):
        assert written_and_read(dialect, arguments) == (ToolCall("look", json.loads(json.dumps(arguments))),), dialect
