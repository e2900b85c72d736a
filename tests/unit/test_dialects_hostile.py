"""Hostile and malformed text in every tool-call dialect: nothing raises, and nothing takes long."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.calls_of_texts import read
from xp.episode.dialects import SYNTAX
from xp.episode.tool_calls import MalformedCall, ToolCall
from xp.spec.dialect import Dialect

HOSTILE = [
    "<tool_call>", "<function=", "<function=a>", "<parameter=", "<parameter=a>", "</parameter>", "<arg_key>",
    "<arg_value>",
    '{"name":', '{"name": "a", ', "[a(", "[a(x=", "[a(x=[", "[a(x='", "[a(x={'k': ", "<|message|>", "<|start|>",
    " to=functions.a<|message|>", "<|channel|>", "\\", "'", "{", "[", "<think>", "1", "-",
    "[TOOL_CALLS]", "[TOOL_CALLS]a[ARGS]{", "[TOOL_CALLS][{", "<｜tool▁call▁begin｜>a<｜tool▁sep｜>{", "```json {",
    "<|tool_call_begin|>functions.", ":1<|tool_call_argument_begin|>{", "<|tool_call>call:a{", "a:", '<|"|>', ",",
    "<|channel>", "<|START_ACTION|>[", "<|START_THINKING|>", '<invoke name="a">', '<parameter name="a">', "</invoke>",
]  # fmt: skip


@pytest.mark.parametrize("dialect", list(SYNTAX))
def test_long_hostile_text_is_read_in_linear_time(dialect: Dialect) -> None:
    for piece in HOSTILE:
        for begin in (
            "",
            "<tool_call><function=a>",
            "[a(x=",
            '{"name": "a", "parameters": ',
            "to=functions.a<|message|>",
            "[TOOL_CALLS]a[ARGS]",
            "<|tool_call>call:a{",
        ):
            text = begin + piece * (12_000 // len(piece))
            began = time.process_time()
            read(dialect, text)
            assert time.process_time() - began < 0.4, (piece, begin)


def check_anything(text: str) -> None:
    for dialect in SYNTAX:
        for found in read(dialect, text):
            if isinstance(found, ToolCall):
                json.dumps(
                    [found.name, dict(found.arguments)], ensure_ascii=False, allow_nan=False
                ).encode()
            else:
                assert isinstance(found, MalformedCall)


ENDINGS = ["<tool_call|>", "<|tool_call_end|>", "<｜tool▁call▁end｜>", "<|END_ACTION|>"]
ENDINGS += ["</tool_call>", "</function>", "</arg_key>", "</arg_value>", ")]", "}", ">"]
PIECES = [*HOSTILE, *ENDINGS, "look", "\\ud800", "1e999"]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=12), max_size=10).map("".join))
def test_no_dialect_raises_whatever_the_text(text: str) -> None:
    check_anything(text)
