"""The first messages of an episode, the same for all backends, and the comparison of those of two sessions."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from os.path import commonprefix
from typing import Any, Final

from xp.envs.base import Message, Picture, Session, ToolSpec
from xp.envs.pictures import digests_of, parts_of, separated, with_pictures
from xp.episode.dialects import syntax_of
from xp.lib.digest import digest_of
from xp.lib.text import counted, valid_value
from xp.spec.dialect import Dialect

EMPTY_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}}
WAY_OUT: Final = (
    "set env.prompt=live if each session is meant to draw its own, else make it depend on the task alone (a seed of its"
    " own, not hash() or the time)"
)
"""Ending of a message about a prompt that is not the prepared one."""
MAX_EXCERPT: Final = 48
"""Largest number of characters of each text in the description of a difference."""
_PLACEHOLDER: Final = re.compile(r"\{tools\}|\{tool_names\}")


def tool_schema(tool: ToolSpec) -> dict[str, Any]:
    """A tool in the format of `tools=` of Hugging Face chat templates."""
    parameters = dict(tool.parameters) or EMPTY_PARAMETERS
    function = {"name": tool.name, "description": tool.description, "parameters": parameters}
    return {"type": "function", "function": function}


def tool_schemas(tools: Sequence[ToolSpec]) -> list[dict[str, Any]]:
    return [tool_schema(tool) for tool in tools]


def opening_messages(
    template: str | None, prompt: Sequence[Message], tools: Sequence[ToolSpec]
) -> list[Message]:
    """First messages of the dialogue.

    Args:
        template: system prompt; `{tools}` in it becomes the tools' schemas as JSON lines, `{tool_names}` their names.
            Other braces are kept. None: no system message from xp.
        prompt: the environment's first messages. A system message among them is appended to xp's, since most chat
            templates support only one.
    """
    if template is None:
        return [_clean(message) for message in prompt]
    lines = "\n".join(json.dumps(schema, ensure_ascii=False) for schema in tool_schemas(tools))
    texts = {"{tools}": lines, "{tool_names}": ", ".join(tool.name for tool in tools)}
    system = _PLACEHOLDER.sub(lambda placeholder: texts[placeholder[0]], template)
    opening = Message(role="system", content=system)
    if prompt and prompt[0]["role"] == "system":
        opening = with_pictures(opening, [f"{system}\n\n", *parts_of(prompt[0])])
        prompt = prompt[1:]
    return [_clean(message) for message in (opening, *prompt)]


def prompt_keys(messages: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """Identity of a prompt, with its pictures: the digest of its messages without those of the system, and of all.

    A question is the same one with another system message or other white space. The second is for environments whose
    system messages are the questions.
    """
    contents = [
        (
            message["role"],
            " ".join(message["content"].split()),
            message.get("tool_calls") or [],
            *digests_of([message]),
        )
        for message in messages
    ]
    without_system = [content for content in contents if content[0] not in ("system", "developer")]
    return digest_of(without_system or contents), digest_of(contents)


def _clean(message: Message) -> Message:
    """A message with valid texts, without empty keys and others, which a provider of the user's own may give it."""
    present = {
        key: value
        for key, value in message.items()
        if key in Message.__annotations__ and value is not None
    }
    clean: Message = valid_value(present)
    return clean


def session_messages(template: str | None, session: Session) -> list[Message]:
    """First messages of the dialogue in a session; its tools are requested only if the template names them.

    Args:
        template: system prompt, as in `opening_messages`.
    """
    needs_tools = template is not None and _PLACEHOLDER.search(template)
    tools = session.tools() if needs_tools else ()
    return opening_messages(template, session.prompt(), tools)


def first_difference(
    expected: Sequence[Mapping[str, object]], actual: Sequence[Mapping[str, object]]
) -> str | None:
    """Describes the first place where two dialogues differ. None means that they are equal. A key without a value does
    not count."""
    for number, (first, other) in enumerate(zip(expected, actual, strict=False), start=1):
        for key in {**first, **other}:
            if first.get(key) != other.get(key):
                was, now = _excerpts(first.get(key), other.get(key))
                return f"message {number}, {key}: expected {was}, got {now}"
    if len(expected) != len(actual):
        return f"expected {counted(len(expected), 'message')}, got {len(actual)}"
    return None


def _excerpts(*values: object) -> list[str]:
    """Two values as printable texts, each from just before the first difference."""
    texts = [
        value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)
        for value in values
    ]
    start = max(0, len(commonprefix(texts)) - MAX_EXCERPT // 2)  # noqa: RUF071 - these are no paths
    end = start + MAX_EXCERPT
    return [
        repr("..." * (start > 0) + text[start:end] + "..." * (end < len(text))) for text in texts
    ]


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
    syntax = syntax_of(dialect)
    result = list[Message]()
    for _, group in groupby(messages, lambda message: message["role"] in ("tool", "user")):
        part = list(group)
        if any(message["role"] == "tool" for message in part):
            part = as_user(part)
        for message in part:
            calls = [call["function"] for call in message.get("tool_calls", ())]
            written = syntax.joined(
                [syntax.write(call["name"], call["arguments"]) for call in calls]
            )
            content = "\n".join(filter(None, [message["content"], written]))
            if calls:
                message = Message({**message, "content": content})
                del message["tool_calls"]
            result.append(message)
    if not schemas:
        return result
    lines = "\n".join(json.dumps(schema, ensure_ascii=False) for schema in schemas)
    text = _SYSTEM.replace("{form}", syntax.form).replace("{tools}", lines, 1)
    if result and result[0]["role"] == "system":
        system = Message({**result[0], "content": f"{result[0]['content']}\n\n{text}"})
        return [system, *result[1:]]
    return [Message(role="system", content=text), *result]


def as_user(messages: Sequence[Message]) -> list[Message]:
    """The environment's messages as one user message, since some templates lack the role `tool` or refuse two in a
    row."""
    if not messages:
        return []
    groups: list[list[str | Picture]] = []
    for message in messages:
        parts = parts_of(message)
        if message["role"] == "tool":
            parts = ["<tool_response>\n", *parts, "\n</tool_response>"]
        groups.append(parts)
    return [with_pictures(Message(role="user", content=""), separated(groups, "\n"))]
