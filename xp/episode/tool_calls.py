"""Parsers of tool calls in a model's text, one per dialect; none of them raises for any text."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from xp.episode.call_data import Data, Tags, json_object, without_thinking

OPEN: Final = "<tool_call>"
CLOSE: Final = "</tool_call>"
_DATA: Final = json_object(rf"(?<={OPEN})\s*\{{")
HERMES_FORM: Final = '<tool_call>\n{"name": "<tool>", "arguments": {...}}\n</tool_call>'
MAX_CALL_CHARS: Final = 262_144
"""Largest length of a call, in characters; parsing longer ones would delay other episodes."""

MAX_CALLS: Final = 64
"""Largest number of parsed calls of one message; all further text counts as one malformed call."""


@dataclass(frozen=True)
class ToolCall:
    """A call as the model wrote it; the environment checks whether the tool exists."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class Malformed:
    """A tool call that cannot be parsed."""

    fault: str
    """The fault in one sentence, for the model."""


ParsedCall = ToolCall | Malformed
TOO_LONG: Final = Malformed(f"the tool call is longer than {MAX_CALL_CHARS} characters")


def parse_hermes(text: str) -> tuple[ParsedCall, ...]:
    """The calls of one turn, in order; empty if there are none."""
    return with_calls(bodies(text, _DATA), parse_call)


def bodies(text: str, data: Data, bare: str | None = None) -> Iterator[str]:
    """Text between `<tool_call>` and `</tool_call>`, call by call. Text inside `<think>` is not a call.

    The last closing tag may be missing, if it was the stop string or the turn ended with the call.

    Args:
        text: one turn.
        data: the form of arguments; tags inside them are a part of them.
        bare: beginning of a call without tags; None: every call has tags.
    """
    said = without_thinking(text, data)
    if bare is not None and (begin := said.find(bare)) >= 0 and Tags(said, OPEN, data).after(0) is None:
        yield said[begin:]
        return
    tags = Tags(said, f"{OPEN}|{CLOSE}", data)
    start: int | None = None
    position = 0
    while (tag := tags.after(position)) is not None:
        position = tag.end()
        body = None if start is None else said[start : tag.start()]
        # An opening tag ends an unclosed call too, but a doubled one opens a single call.
        if body is not None and (tag.group() == CLOSE or body.strip()):
            yield body
        start = position if tag.group() == OPEN else None
    if start is not None:
        yield said[start:]


def with_calls(found: Iterable[str], read: Callable[[str], ParsedCall]) -> tuple[ParsedCall, ...]:
    """Parses each body as a call, within the limits of length and number."""
    calls: list[ParsedCall] = []
    for body in found:
        if len(calls) == MAX_CALLS:
            return (*calls, Malformed(f"more than {MAX_CALLS} tool calls in one message"))
        calls.append(read(body) if len(body) <= MAX_CALL_CHARS else TOO_LONG)
    return tuple(calls)


def parse_call(body: str) -> ParsedCall:
    """Parses a call from its JSON object with `name` and `arguments`."""
    value = read_json(body)
    return value if isinstance(value, Malformed) else call_of(value, "arguments")


def read_json(text: str) -> Any:
    """The value of a JSON text, or Malformed."""
    if len(text) > MAX_CALL_CHARS:
        return TOO_LONG
    try:
        return json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_unique_keys)
    except RecursionError:
        return Malformed("the tool call is nested too deeply")
    except json.JSONDecodeError as error:
        return Malformed(f"the tool call is not valid JSON ({error.msg} at character {error.pos})")
    except ValueError as error:
        return Malformed(f"the tool call is not valid JSON ({error})")


def call_of(value: Any, key: str) -> ParsedCall:
    """The call in a JSON value, with its arguments under `key`; null or a missing key means no arguments."""
    if not isinstance(value, dict):
        return Malformed("the tool call is not a JSON object")
    name, arguments = value.get("name"), value.get(key)
    if not isinstance(name, str) or not name:
        return Malformed('the tool call has no "name" that is a string')
    if isinstance(arguments, str):
        # Some models write the arguments as a JSON string, as in OpenAI's API.
        inner = None if arguments.strip() in ("", "null") else read_json(arguments)
        arguments = arguments if isinstance(inner, Malformed) else inner
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        return Malformed(f'"{key}" of the tool call is not a JSON object')
    return checked_call(name, arguments)


def checked_call(name: str, arguments: Mapping[str, Any]) -> ParsedCall:
    """The call, or Malformed if it cannot be encoded as UTF-8 JSON."""
    if not _is_encodable(name, arguments):
        return Malformed("the tool call holds a lone surrogate or a number that JSON cannot carry")
    return ToolCall(name, arguments)


def _is_encodable(name: str, arguments: Mapping[str, Any]) -> bool:
    """Returns whether the call can be encoded as UTF-8 JSON.

    JSON allows a lone surrogate and `1e999`, but they cannot be sent.
    """
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
