"""Arguments that hold tags: they reach the tool as the model wrote them, in every dialect."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.support.calls_of_texts import LOOK, read
from xp.envs.base import ToolSpec
from xp.episode.dialects import SYNTAX
from xp.episode.tool_calls import ToolCall
from xp.spec.dialect import Dialect

TAGS = [
    "<think>", "</think>", "<think>x</think>", "<tool_call>", "</tool_call>", '<tool_call>{"name": "no"}</tool_call>',
    "<action>", "</action>", "<function=no>", "</function>", "<parameter=no>", "</parameter>", "<parameter=count>",
    "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "<arg_key>count</arg_key>",
    "<|python_tag|>", "[no(x=1)]", '{"name": "no", "parameters": {}}', "<|start|>", "<|end|>", "<|call|>",
    "[TOOL_CALLS]", "[ARGS]", "[THINK]", "[/THINK]", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>",
    "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<|tool_calls_section_begin|>", "<|tool_call_begin|>",
    "<|tool_call_end|>", "<|tool_calls_section_end|>", "```",
    "<|tool_call>", "<tool_call|>", "<|channel>", "<channel|>", '<|"|>', "<|START_ACTION|>", "<|END_ACTION|>",
    "<|END_THINKING|>", "<|START_THINKING|>", "<minimax:tool_call>", "</minimax:tool_call>", '<invoke name="no">',
    "</invoke>", '<parameter name="no">', '<parameter name="count">', "<|message|>", " to=functions.no",
    "\\[ f(2) \\]", "'", '"', "\\", "\n", "{", "}", ")]", "\u2028",
]  # fmt: skip
ENDS = {
    Dialect.QWEN_XML: re.compile(r"</parameter>\s*(<parameter=|</function>|</tool_call>)"),
    Dialect.GLM: re.compile(r"</arg_value>\s*(<arg_key>|</tool_call>)"),
    Dialect.MINIMAX: re.compile(
        r"</parameter>\s*(<parameter name=|</invoke>|</minimax:tool_call>)"
    ),
    Dialect.GEMMA: re.compile(r'<\|"\|>'),
}
"""Ends of a value in dialects that have no escapes; nothing tells whether they are a part of it."""
REFUSED = {
    Dialect.QWEN_XML: re.compile(
        r"<parameter=(count|share)>|(</function>|</tool_call>)(?s:.*)(<function=|<tool_call>)"
    ),
    Dialect.GLM: re.compile(
        r"<arg_key>(count|share)</arg_key>\s*<arg_value>|</tool_call>(?s:.*)<tool_call>"
    ),
    Dialect.MINIMAX: re.compile(
        r'<parameter name="(count|share)">|(</invoke>|</minimax:tool_call>)(?s:.*)(<invoke name=|<minimax:tool_call>)'
    ),
}
"""Beginnings of another argument or call within a value: more probably it was not closed."""
ACT = ToolSpec("look", "Look.", {**LOOK.parameters, "required": ["text"]})


def survives(dialect: Dialect, text: str) -> bool:
    """Whether a dialect can write the text at all."""
    return not any(of[dialect].search(text) for of in (ENDS, REFUSED) if dialect in of)


def written_and_read(
    dialect: Dialect, arguments: dict[str, Any], before: str = "", after: str = ""
) -> Any:
    return read(
        dialect,
        before + SYNTAX[dialect].write("look", arguments) + after,
        (ACT,),
    )


@pytest.mark.parametrize("dialect", list(SYNTAX))
def test_a_tag_in_an_argument_is_a_part_of_it(dialect: Dialect) -> None:
    arguments = [
        {"text": f"a {text} b", "options": {"k": [text]}}
        for text in TAGS
        if survives(dialect, text)
    ]
    assert len(arguments) >= len(TAGS) - 2
    assert [written_and_read(dialect, one) for one in arguments] == [
        (ToolCall("look", one),) for one in arguments
    ]


@pytest.mark.parametrize(
    "dialect", [dialect for dialect in SYNTAX if dialect is not Dialect.HARMONY]
)
@pytest.mark.parametrize("text", ["<think>x</think>", "</think>"])
def test_thinking_before_a_call_is_no_part_of_it(dialect: Dialect, text: str) -> None:
    draft = SYNTAX[dialect].write("look", {"text": "draft"})
    expected = (ToolCall("look", {"text": text}),)
    assert written_and_read(dialect, {"text": text}, f"<think>I try {draft}</think>\n") == expected
    assert (
        written_and_read(dialect, {"text": text}, f"opened in the prompt, I try {draft}</think>\n")
        == expected
    )
    assert written_and_read(dialect, {"text": text}, after="</think>no call") == ()
