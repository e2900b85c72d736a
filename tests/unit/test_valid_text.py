"""Lone surrogates, which a server may send in JSON, but no tokenizer and no file takes."""

from __future__ import annotations

import json

import pytest

from tests.support.fake_session import RULES
from tests.support.sections import held_out_rule, member_of, replace, selection
from xp.envs.base import Message, ToolSpec
from xp.lib.text import valid_text, valid_value
from xp.tasks.questions import entry_of

CUT = "cut \ud83d emoji"
WHOLE = "cut \ufffd emoji"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", "plain"),
        ("häßlich \u2028 \U0001f600 \ufeff", "häßlich \u2028 \U0001f600 \ufeff"),
        ("\ud83d\ude00", "\U0001f600"),
        ("\ude00\ud83d", "\ufffd\ufffd"),
        ("a\ud83d", "a\ufffd"),
        (CUT, WHOLE),
    ],
)
def test_pairs_are_joined_and_lone_surrogates_replaced(text: str, expected: str) -> None:
    assert valid_text(text) == expected
    assert valid_value({text: [text, 1, None, {"a": text}]}) == {
        expected: [expected, 1, None, {"a": expected}]
    }


def test_a_prepared_task_has_tools_and_messages_that_a_tokenizer_takes() -> None:
    rules = replace(RULES, system_prompt="{tools}")
    member = member_of(rules, selection(), held_out_rule("test"), weight=1.0)
    tools = (
        ToolSpec(
            CUT,
            CUT,
            {"type": "object", "properties": {CUT: {"enum": [CUT]}}},
        ),
    )
    messages = [Message(role="user", content=CUT)]
    entry = entry_of("hash", messages, tools, member)
    assert "\\ud83d" not in entry.tools
    assert json.loads(entry.tools)[0]["function"]["name"] == WHOLE
    assert [WHOLE in message["content"] for message in entry.messages or ()] == [True, True]
