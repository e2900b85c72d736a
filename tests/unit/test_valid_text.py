"""Lone surrogates, which a server may send in JSON, but no tokenizer and no file takes."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.fake_session import RULES
from xp.envs import wire
from xp.envs.base import Message, ProtocolError, Task, ToolSpec
from xp.lib.text import valid_text, valid_value
from xp.tasks.config import HeldOut, MemberConfig, Selection
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
    assert valid_value({text: [text, 1, None, {"a": text}]}) == {expected: [expected, 1, None, {"a": expected}]}


@pytest.mark.parametrize(
    "text",
    [
        json.dumps({"a": [CUT]}),
        '{"a": ["cut \\uD83D emoji"]}',
        json.dumps({"a": [CUT]}).encode(),
        json.dumps({"a": [CUT]}, ensure_ascii=False),
        json.dumps({"a": [CUT]}, ensure_ascii=False).encode("utf-8", "surrogatepass"),
        json.dumps({"a": [CUT]}).encode("utf-16"),
    ],
)
def test_an_answer_of_a_server_has_no_lone_surrogate(text: str | bytes) -> None:
    assert wire.parse_json(text, "GET /x") == {"a": [WHOLE]}


def test_an_answer_too_deep_to_be_cleaned_breaks_the_protocol() -> None:
    for depth in (990, 100_000):
        with pytest.raises(ProtocolError, match="nested too deeply"):
            wire.parse_json("[" * depth + '"\\ud83d"' + "]" * depth, "GET /x")


def test_a_prepared_task_has_tools_and_messages_that_a_tokenizer_takes() -> None:
    member = MemberConfig(replace(RULES, system_prompt="{tools}"), Selection(("train",)), HeldOut("test"), weight=1.0)
    tool = ToolSpec(CUT, CUT, {"type": "object", "properties": {CUT: {"enum": [CUT]}}})
    entry = entry_of(Task("fake", "train", 0), "hash", [Message(role="user", content=CUT)], (tool,), member)
    assert entry.messages is not None
    assert entry.messages[1]["content"] == WHOLE
    (schema,) = json.loads(entry.tools)
    assert schema["function"]["name"] == WHOLE
    assert "\\ud83d" not in entry.tools
    assert WHOLE in entry.messages[0]["content"]
