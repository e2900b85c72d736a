"""The opening messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tests.support.fake_session import FakeSession, steady
from xp.envs.base import Message, SessionLost, ToolSpec
from xp.episode.prompt import first_difference, opening_messages, session_messages, tool_schema

TOOL = ToolSpec(
    "look", "Look at {tool_names}.", {"type": "object", "properties": {"at": {"type": "string"}}}
)
USER = Message(role="user", content="Who was it?")


def test_a_tool_becomes_the_schema_that_chat_templates_take() -> None:
    assert tool_schema(TOOL) == {
        "type": "function",
        "function": {
            "name": "look",
            "description": "Look at {tool_names}.",
            "parameters": TOOL.parameters,
        },
    }


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


@pytest.mark.parametrize(
    ("expected", "actual", "words"),
    [
        ([USER], [USER], None),
        ([USER], [], "expected 1 message, got 0"),
        ([USER], [USER | {"role": "system"}], "message 1, role: expected 'user', got 'system'"),
        ([USER], [USER | {"name": "Ada"}], "message 1, name: expected 'null', got 'Ada'"),
        (
            [USER | {"content": f"{'a' * 90}\x1b[2J{'b' * 90}"}],
            [USER | {"content": f"{'a' * 90}\x1b[2K"}],
            rf"message 1, content: expected '...{'a' * 21}\x1b[2J{'b' * 23}...', got '...{'a' * 21}\x1b[2K'",
        ),
    ],
)
def test_the_first_difference_of_dialogues_is_a_few_words(
    expected: Sequence[Mapping[str, Any]], actual: Sequence[Mapping[str, Any]], words: str | None
) -> None:
    assert first_difference(expected, actual) == words


def test_tools_are_requested_for_a_system_prompt_that_names_them_only() -> None:
    session = NoTools(steady)
    assert session_messages(None, session) == session.prompt()
    assert [message["role"] for message in session_messages("Be brief.", session)] == [
        "system",
        "user",
    ]
    with pytest.raises(SessionLost):
        session_messages("{tools}", session)


class NoTools(FakeSession):
    """A session whose tools cannot be listed."""

    def tools(self) -> tuple[ToolSpec, ...]:
        raise SessionLost("who?")
