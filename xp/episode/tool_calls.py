"""What a model wrote, read as tool calls: one function per dialect, none of which raises, whatever the text."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

OPEN: Final = "<tool_call>"
CLOSE: Final = "</tool_call>"
_TAGS: Final = re.compile(f"({OPEN}|{CLOSE})")
THINK_OPEN: Final = "<think>"
THINK_CLOSE: Final = "</think>"
HERMES_FORM: Final = '<tool_call>\n{"name": "<tool>", "arguments": {...}}\n</tool_call>'
MAX_CALL_CHARS: Final = 262_144
"""A longer call is malformed: no tool takes it, and it would be parsed at the cost of every other episode."""

MAX_CALLS: Final = 64
"""Calls of one message that are read; what follows is one malformed call, however much it is."""


@dataclass(frozen=True)
class ToolCall:
    """A call as the model wrote it; whether the tool exists is the environment's question."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class Malformed:
    """Something that wants to be a tool call and cannot be read as one."""

    fault: str
    """One sentence for the model: what is wrong."""


ParsedCall = ToolCall | Malformed


def parse_hermes(text: str) -> tuple[ParsedCall, ...]:
    """The calls of one turn, in order; empty when there is none.

    The closing tag may be missing at the end: it was the stop string, or the turn ended with the call.
    What stands in `<think>` is not a call.
    """
    calls: list[ParsedCall] = []
    body: str | None = None
    for piece in _TAGS.split(without_thinking(text)):
        if piece not in (OPEN, CLOSE):
            body = None if body is None else piece
            continue
        # An opening tag ends an unclosed call too, but a doubled one opens a single call.
        if body is not None and (piece == CLOSE or body.strip()):
            calls.append(parse_call(body))
        body = "" if piece == OPEN else None
        if len(calls) == MAX_CALLS:
            return (*calls, Malformed(f"more than {MAX_CALLS} tool calls stand in one message"))
    if body is not None:
        calls.append(parse_call(body))
    return tuple(calls)


def without_thinking(text: str) -> str:
    """The text outside of `<think>` blocks; the opening tag may stand in the prompt, the closing one may be missing."""
    close, opening = text.find(THINK_CLOSE), text.find(THINK_OPEN)
    if close >= 0 and (opening < 0 or close < opening):
        text = text[close + len(THINK_CLOSE) :]
    kept, position = [], 0
    while (opening := text.find(THINK_OPEN, position)) >= 0:
        kept.append(text[position:opening])
        close = text.find(THINK_CLOSE, opening)
        if close < 0:
            return "".join(kept)
        position = close + len(THINK_CLOSE)
    return "".join([*kept, text[position:]])


def parse_call(body: str) -> ParsedCall:
    """A call from its JSON object with `name` and `arguments`."""
    if len(body) > MAX_CALL_CHARS:
        return Malformed(f"the tool call is longer than {MAX_CALL_CHARS} characters")
    try:
        value = json.loads(body, parse_constant=_refuse_constant, object_pairs_hook=_unique_keys)
    except RecursionError:
        return Malformed("the tool call is nested too deeply")
    except json.JSONDecodeError as error:
        return Malformed(f"the tool call is not valid JSON ({error.msg} at character {error.pos})")
    except ValueError as error:
        return Malformed(f"the tool call is not valid JSON ({error})")
    return _call_of(value)


def _call_of(value: Any) -> ParsedCall:
    if not isinstance(value, dict):
        return Malformed("the tool call is not a JSON object")
    name, arguments = value.get("name"), value.get("arguments", {})
    if not isinstance(name, str) or not name:
        return Malformed('the tool call has no "name" that is a string')
    if isinstance(arguments, str):
        # Some models write the arguments as a JSON string, the way OpenAI's API carries them.
        inner = parse_call(f'{{"name": "_", "arguments": {arguments}}}') if arguments.lstrip().startswith("{") else None
        nothing = None if arguments.strip() in ("", "null") else arguments
        arguments = inner.arguments if isinstance(inner, ToolCall) else nothing
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        return Malformed('"arguments" of the tool call is not a JSON object')
    if not _is_encodable(name, arguments):
        return Malformed("the tool call holds a lone surrogate or a number that JSON cannot carry")
    return ToolCall(name, arguments)


def _is_encodable(name: str, arguments: Mapping[str, Any]) -> bool:
    """Whether the call can travel as UTF-8 JSON: `\\ud800` and `1e999` are legal to write and impossible to send."""
    try:
        json.dumps([name, arguments], ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError):
        return False
    return True


def _refuse_constant(constant: str) -> Any:
    raise ValueError(f"{constant} is not a JSON number")


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("a key occurs twice")
    return value
