"""The dialect of text environments: `<action>...</action>` has the argument of the environment's only tool."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from xp.envs.base import ToolSpec
from xp.envs.call_data import Tags, json_value, without_thinking
from xp.episode.json_schema import TYPES, allowed_types, branches, properties, required
from xp.episode.tagged_calls import is_omitted, value_of
from xp.episode.tool_calls import (
    MAX_CALL_CHARS,
    MalformedCall,
    ParsedCall,
    ToolCall,
    Tools,
    checked_call,
    parse_call,
)

FORM: Final = "<action>...</action>"
_OPEN: Final = "<action>"
_CLOSE: Final = "</action>"
_TEXT: Final = {"type": "string"}
_DATA: Final = json_value(rf"(?<={_OPEN})\s*\{{")


def parse_action(text: str, tools: Tools) -> tuple[ParsedCall, ...]:
    """The turn's last action as one call; empty if there is none.

    Args:
        text: the model's text; text inside `<think>` is not an action.
        tools: called only if there is an action; raises EnvFault.
    """
    body = _last_body(without_thinking(text, _DATA))
    if body is None:
        return ()
    if len(body) > MAX_CALL_CHARS:
        return (MalformedCall(f"the action is longer than {MAX_CALL_CHARS} characters"),)
    return (_call_of(body.strip(), tools()),)


def _last_body(text: str) -> str | None:
    """Text of the last action, whose closing tag may be missing. None means that there is no action."""
    tags = Tags(text, f"{_OPEN}|{_CLOSE}", _DATA)
    body: str | None = None
    start: int | None = None
    position = 0
    while (tag := tags.after(position)) is not None:
        position = tag.end()
        if start is None and tag.group() == _OPEN:
            start = position
        elif start is not None and tag.group() == _CLOSE:
            body = text[start : tag.start()]
            start = None
    return body if start is None else text[start:]


def _call_of(body: str, tools: Sequence[ToolSpec]) -> ParsedCall:
    if len(tools) != 1:
        present = ", ".join(tool.name for tool in tools) or "none"
        return MalformedCall(
            f"an action needs an environment with exactly one tool; this one has: {present}"
        )
    (tool,) = tools
    root = tool.parameters
    declared = properties(root)
    needed = required(root)
    if body.startswith("{"):
        call = parse_call(json.dumps({"name": tool.name, "arguments": body}))
        if isinstance(call, ToolCall) and set(call.arguments) <= set(declared):
            return call
    names = needed or list(declared)
    if not names and body in ("", "null"):
        return ToolCall(tool.name, {})
    if len(names) != 1:
        return MalformedCall(
            f"the action must be a JSON object with {', '.join(names) or 'no keys'}"
        )
    # Between these tags stands text, so a schema without a type means text.
    options = [
        branch if allowed_types(branch) != TYPES else _TEXT
        for branch in branches(declared.get(names[0]), root)
    ]
    if not needed and is_omitted(body, options):
        return ToolCall(tool.name, {})
    value = value_of(body, options)
    if isinstance(value, MalformedCall):
        return MalformedCall(f"the action {value.fault}")
    return checked_call(tool.name, {names[0]: value})
