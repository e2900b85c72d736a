"""The dialect of text environments."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.fake_session import RULES, TASK, FakeSession
from tests.support.sections import replace
from xp.envs.base import ToolResult, ToolSpec
from xp.episode.episode import Episode
from xp.episode.text_action import parse_action
from xp.episode.tool_calls import MalformedCall, ToolCall
from xp.spec.dialect import Dialect


def tool(**properties: str) -> ToolSpec:
    schema = {name: {"type": kind} for name, kind in properties.items()}
    return ToolSpec(
        "step", "", {"type": "object", "properties": schema, "required": list(properties)}
    )


def parsed(text: str, *tools: ToolSpec) -> Any:
    return parse_action(text, lambda: tools)


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("<action>hello world</action>", "string", "hello world"),
        ("I say <action> hi ", "string", "hi"),
        ("<action>a</action><action>b</action>", "string", "b"),
        ("<think><action>a</action></think><action>b</action>", "string", "b"),
        ("<action>3</action>", "integer", 3),
        ("<action>[1, 2]</action>", "array", [1, 2]),
        ('<action>{"it": "x"}</action>', "string", "x"),
        ('<action>{"other": "x"}</action>', "string", '{"other": "x"}'),
    ],
)
def test_the_action_is_the_only_argument_of_the_only_tool(text: str, kind: str, value: Any) -> None:
    assert parsed(text, tool(it=kind)) == (ToolCall("step", {"it": value}),)


def test_several_arguments_are_written_as_json() -> None:
    two = tool(x="integer", y="integer")
    assert parsed('<action>{"x": 1, "y": 2}</action>', two) == (ToolCall("step", {"x": 1, "y": 2}),)
    assert isinstance(parsed("<action>1</action>", two)[0], MalformedCall)


@pytest.mark.parametrize("body", ["", "null"])
def test_an_action_of_a_tool_without_arguments_is_one_call(body: str) -> None:
    assert parsed(f"<action>{body}</action>", tool()) == (ToolCall("step", {}),)


def test_an_action_among_several_tools_is_malformed() -> None:
    both = (tool(a="string"), tool(b="string"))
    assert isinstance(parsed("<action>x</action>", *both)[0], MalformedCall)
    assert parsed("<think><action>x</action></think>", *both) == ()


def test_an_episode_in_this_dialect_answers_as_the_user() -> None:
    session = FakeSession(lambda name, calls: ToolResult(f"{name} {calls}", 1.0))
    session.tools = lambda: (tool(text="string"),)  # type: ignore[method-assign]
    episode = Episode(TASK, lambda: session, replace(RULES, dialect=Dialect.ACTION))
    assert episode.step("<action>hi</action>").messages[0]["role"] == "user"
    assert episode.settle().reward == 1.0


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": ["integer", "null"]}, 3),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, 3),
        (True, "3"),
    ],
)
def test_a_schema_may_allow_several_types(schema: object, value: object) -> None:
    arguments = {"type": "object", "properties": {"it": schema}, "required": ["it"]}
    call = ToolCall("step", {"it": value})
    assert parsed("<action>3</action>", ToolSpec("step", "", arguments)) == (call,)
