"""The opening messages."""

from __future__ import annotations

from xp.envs.base import Message, ToolSpec
from xp.episode.prompt import opening_messages, tool_schema

TOOL = ToolSpec("look", "Look at {tool_names}.", {"type": "object", "properties": {"at": {"type": "string"}}})
USER = Message(role="user", content="Who was it?")


def test_a_tool_becomes_the_schema_that_chat_templates_take() -> None:
    assert tool_schema(TOOL) == {
        "type": "function",
        "function": {"name": "look", "description": "Look at {tool_names}.", "parameters": TOOL.parameters},
    }


def test_a_tool_without_arguments_has_an_empty_object_schema() -> None:
    assert tool_schema(ToolSpec("a", "", {}))["function"]["parameters"] == {"type": "object", "properties": {}}


def test_without_a_template_the_environments_messages_stand_alone() -> None:
    assert opening_messages(None, [USER], [TOOL]) == [USER]


def test_the_template_is_filled_once_and_other_braces_stand() -> None:
    system, user = opening_messages('{"a": 1} {tool_names}\n{tools}', [USER], [TOOL])
    assert system["role"] == "system"
    assert system["content"].startswith('{"a": 1} look\n{"type": "function"')
    assert "Look at {tool_names}." in system["content"]
    assert user == USER


def test_an_environments_system_message_joins_ours() -> None:
    own = Message(role="system", content="Be kind.")
    assert opening_messages("Be brief.", [own, USER], []) == [
        {"role": "system", "content": "Be brief.\n\nBe kind."},
        USER,
    ]
