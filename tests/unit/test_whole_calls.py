"""No call is executed with parts left unread: texts of models, most of them from public reports, in every dialect."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.calls_of_texts import read
from tests.support.tables import rows
from xp.envs.base import ToolSpec
from xp.envs.call_data import MAX_FAILED
from xp.episode.dialects import SYNTAX
from xp.episode.tool_calls import MalformedCall, ToolCall, read_json
from xp.spec.dialect import Dialect

KINDS = {"text": "string", "path": "string", "query": "string", "count": "integer"}
SCHEMA = {"type": "object", "properties": {name: {"type": kind} for name, kind in KINDS.items()}}
TOOLS = [
    ToolSpec(name, "", SCHEMA)
    for name in ("look", "write_file", "search", "web-search", "grocery.order")
]
LOOK = ToolCall("look", {"text": "a"})
JSON_CALL = '{"name": "look", "arguments": {"text": "a"}}'
CONTROLS = str.maketrans("␊␍␉", "\n\r\t")


def calls(dialect: Dialect, text: str) -> Any:
    return read(dialect, text, TOOLS)


@pytest.mark.parametrize(("dialect", "turn", "expected"), rows("calls"))
def test_a_turn_is_read_whole_or_is_malformed_and_says_why(
    dialect: str, turn: str, expected: list[str]
) -> None:
    found = calls(Dialect(dialect), turn.translate(CONTROLS))
    if expected[0].startswith("malformed"):
        (malformed,) = found
        assert isinstance(malformed, MalformedCall)
        assert expected[0].removeprefix("malformed").strip() in malformed.fault
        assert 10 < len(malformed.fault) < 250
    else:
        pairs = [line.partition(" ") for line in expected if line != "answer"]
        assert found == tuple(ToolCall(name, json.loads(arguments)) for name, _, arguments in pairs)


@pytest.mark.parametrize(
    "value",
    [
        "[" * 33 + "]" * 33,
        "1+" * 50_000 + "1",
        "9" * 5000,
    ],
    ids=lambda value: value[:2],
)
def test_a_value_that_python_cannot_hold_is_malformed(value: str) -> None:
    (found,) = calls(Dialect.PYTHONIC, f"[look(text={value})]")
    assert isinstance(found, MalformedCall)


@pytest.mark.parametrize(
    "body",
    ["[" * 100_000, '{"a":' * 50_000],
    ids=lambda body: body[:4],
)
def test_json_of_any_depth_never_raises(body: str) -> None:
    (found,) = calls(Dialect.HERMES, f"<tool_call>{body}</tool_call>")
    assert found == MalformedCall("the tool call is nested too deeply")
    assert read_json("[" * 20_000) == found


@pytest.mark.parametrize("key", ["arguments", "parameters"])
@pytest.mark.parametrize(
    "wrap", ["{}", '{{"type": "function", "function": {}}}', '{{"function": {}}}']
)
@pytest.mark.parametrize("dialect", [Dialect.HERMES, Dialect.LLAMA_JSON])
def test_both_words_for_arguments_are_read_in_every_json_dialect(
    dialect: Dialect, wrap: str, key: str
) -> None:
    text = wrap.format(json.dumps({"name": "look", key: {"text": "a"}}))
    assert calls(dialect, f"<tool_call>{text}</tool_call>") == (LOOK,)


def test_after_many_broken_beginnings_nothing_is_read() -> None:
    broken = ['{"a ' * number + JSON_CALL for number in (MAX_FAILED - 1, MAX_FAILED)]
    assert [calls(Dialect.LLAMA_JSON, text) for text in broken] == [(LOOK,), ()]
    broken = ["[a(1 " * number + "[look(text='a')]" for number in (MAX_FAILED - 1, MAX_FAILED)]
    assert [bool(calls(Dialect.PYTHONIC, text)) for text in broken] == [True, False]


@pytest.mark.parametrize(
    ("dialect", "text"),
    [
        (Dialect.LLAMA_JSON, '{"name": "look", "parameters": {"text": "é", "n": 1}}'),
        (Dialect.PYTHONIC, "[look(text='é', n=1)]"),
    ],
)
def test_a_call_is_written_in_its_dialect(dialect: Dialect, text: str) -> None:
    assert SYNTAX[dialect].write("look", {"text": "é", "n": 1}) == text
