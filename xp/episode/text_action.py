"""The dialect of text environments: `<action>...</action>` has the argument of the environment's only tool."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from xp.envs.base import ToolSpec
from xp.episode.call_data import Tags, json_object, without_thinking
from xp.episode.tagged_calls import json_types
from xp.episode.tool_calls import MAX_CALL_CHARS, Malformed, ParsedCall, ToolCall, parse_call

FORM: Final = "<action>...</action>"
_OPEN: Final = "<action>"
_CLOSE: Final = "</action>"
_DATA: Final = json_object(rf"(?<={_OPEN})\s*\{{")
_READ: Final[Mapping[str, Callable[[str], Any]]] = {"integer": int, "number": float}


def parse_action(text: str, tools: Callable[[], Sequence[ToolSpec]]) -> tuple[ParsedCall, ...]:
    """The turn's last action as one call; empty if there is none.

    Args:
        text: the model's text; text inside `<think>` is not an action.
        tools: called only if there is an action; raises EnvFault.
    """
    body = _last_body(without_thinking(text, _DATA))
    if body is None:
        return ()
    if len(body) > MAX_CALL_CHARS:
        return (Malformed(f"the action is longer than {MAX_CALL_CHARS} characters"),)
    return (_call_of(body.strip(), tools()),)


def _last_body(said: str) -> str | None:
    """Text of the last action, whose closing tag may be missing; None: there is no action."""
    tags = Tags(said, f"{_OPEN}|{_CLOSE}", _DATA)
    body: str | None = None
    start: int | None = None
    position = 0
    while (tag := tags.after(position)) is not None:
        position = tag.end()
        if start is None and tag.group() == _OPEN:
            start = position
        elif start is not None and tag.group() == _CLOSE:
            body, start = said[start : tag.start()], None
    return body if start is None else said[start:]


def _call_of(body: str, tools: Sequence[ToolSpec]) -> ParsedCall:
    if len(tools) != 1:
        names = ", ".join(tool.name for tool in tools) or "none"
        return Malformed(f"an action needs an environment with exactly one tool; this one has: {names}")
    tool = tools[0]
    properties: Mapping[str, Any] = tool.parameters.get("properties", {})
    if body.startswith("{"):
        call = parse_call(json.dumps({"name": tool.name, "arguments": body}))
        if isinstance(call, ToolCall) and set(call.arguments) <= set(properties):
            return call
    wanted = list(tool.parameters.get("required") or properties)
    if not wanted and body in ("", "null"):
        return ToolCall(tool.name, {})
    if len(wanted) != 1:
        return Malformed(f"the action must be a JSON object with {', '.join(wanted) or 'no keys'}")
    return _single(tool.name, wanted[0], properties.get(wanted[0], {}), body)


def _single(tool: str, name: str, schema: object, body: str) -> ParsedCall:
    kinds = (json_types(schema) if isinstance(schema, Mapping) else frozenset()) or frozenset({"string"})
    if "string" in kinds:
        return ToolCall(tool, {name: body.encode("utf-8", "replace").decode()})
    try:
        value = _READ[min(kinds)](body) if len(kinds) == 1 and kinds <= set(_READ) else json.loads(body)
        json.dumps(value, allow_nan=False)
    except (ValueError, RecursionError):
        return Malformed(f"the action must be of type {' or '.join(sorted(kinds))}")
    return ToolCall(tool, {name: value})
