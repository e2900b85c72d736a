"""Writes the tools into the system message, for a chat template without tools; the same text for every trainer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, Final

from xp.envs.base import Message
from xp.envs.config import Dialect
from xp.episode.dialects import syntax_of

_SYSTEM: Final = """# Tools

You can call these tools. Each line is one tool as JSON: its name, its description and its parameters.
<tools>
{tools}
</tools>

To call a tool, write this, with the name of the tool and its arguments:
{form}

The next message holds its answer within <tool_response></tool_response>."""


def with_tools(
    messages: Sequence[Message], schemas: Sequence[Mapping[str, Any]], dialect: Dialect | str
) -> list[Message]:
    """The first messages as texts, with the tools at the end of the system message, which is added if there is none."""
    messages = _without_calls(messages, dialect)
    if not schemas:
        return messages
    lines = "\n".join(json.dumps(schema, ensure_ascii=False) for schema in schemas)
    text = _SYSTEM.replace("{form}", syntax_of(dialect).form).replace("{tools}", lines, 1)
    if messages and messages[0]["role"] == "system":
        return [Message(role="system", content=f"{messages[0]['content']}\n\n{text}"), *messages[1:]]
    return [Message(role="system", content=text), *messages]


def as_user(messages: Sequence[Message]) -> list[Message]:
    """The environment's messages as one user message, since some templates lack the role `tool` or refuse two in a
    row."""
    parts = [
        f"<tool_response>\n{message['content']}\n</tool_response>" if message["role"] == "tool" else message["content"]
        for message in messages
    ]
    return [Message(role="user", content="\n".join(parts))] if parts else []


def _without_calls(messages: Sequence[Message], dialect: Dialect | str) -> list[Message]:
    """The messages with calls as text in the dialect, and results as a user's text."""
    found: list[Message] = []
    for is_environments, group in groupby(messages, lambda message: message["role"] in ("tool", "user")):
        said = list(group)
        if is_environments and any(message["role"] == "tool" for message in said):
            said = as_user(said)
        for message in said:
            calls = [call["function"] for call in message.get("tool_calls", ())]
            written = [syntax_of(dialect).write(call["name"], call["arguments"]) for call in calls]
            content = "\n".join([*filter(None, [message["content"]]), *written])
            found.append(Message(role=message["role"], content=content) if calls else message)
    return found
