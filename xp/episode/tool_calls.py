"""Parsers of tool calls in a model's text, one per dialect; none of them raises for any text."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from xp.envs.base import ToolSpec
from xp.envs.call_data import THINK_CLOSE, THINK_OPEN, Data, Tags, without_thinking
from xp.envs.messages import call_id

OPEN: Final = "<tool_call>"
CLOSE: Final = "</tool_call>"
MAX_CALL_CHARS: Final = 262_144
"""Largest length of a call, in characters; parsing longer ones would delay other episodes."""

MAX_CALLS: Final = 64
"""Largest number of parsed calls of one message; all further text counts as one malformed call."""

ARGUMENT_KEYS: Final = ("arguments", "parameters")
"""Keys of a call's arguments; models write either in every dialect that is JSON."""


@dataclass(frozen=True)
class ToolCall:
    """A call as the model wrote it; the environment checks whether the tool exists."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class MalformedCall:
    """A tool call that cannot be parsed."""

    fault: str
    """The fault in one sentence, for the model."""


ParsedCall = ToolCall | MalformedCall
Tools = Callable[[], Sequence[ToolSpec]]
"""Function that returns the session's tools; called only if the dialect needs them."""


@dataclass(frozen=True)
class Syntax:
    """One dialect."""

    form: str
    """Description of a call's format, for messages to the model."""
    read: Callable[[str, Tools], tuple[ParsedCall, ...]]
    """Parses one turn's calls; for any text, raises only the exceptions of `Tools`."""
    write: Callable[[str, Mapping[str, Any]], str]
    """Writes a call as the model does, without the token that ends the turn."""
    plain: Callable[[str], str] = without_thinking
    """Returns the text of a turn without a call."""
    call_id: Callable[[str, int], str] = lambda _, number: call_id(number)
    """Returns the id of an episode's call, from the tool and the call's number."""
    thinking: tuple[tuple[str, str], ...] = ()
    """Pairs of tags around thinking, besides `<think>`."""
    joined: Callable[[Sequence[str]], str] = "\n".join
    """Joins the written calls of one turn."""
    prose: Callable[[str, bool], str] = lambda text, is_before_call: (
        f"{text}\n" if is_before_call else text
    )
    """Writes text that is not a call, as a whole turn or before the turn's calls."""

    def thinking_of(self, text: str) -> str:
        """The text of a turn's first block of thinking, whose opening tag may be in the prompt."""
        for opening, closing in ((THINK_OPEN, THINK_CLOSE), *self.thinking):
            before, closed, _ = text.partition(closing)
            if closed or opening in before:
                return before.rpartition(opening)[2].strip()
        return ""

    def before_calls(self, text: str) -> str:
        """The text of a turn before its first call, without thinking; empty if the call's beginning is not found."""
        opening = re.match(r"<[^>]+>|\[\w+\]|.", self.write("x", {}))
        assert opening is not None
        before, marker, _ = self.plain(text).partition(opening[0])
        return before.strip() if marker else ""


TOO_LONG: Final = MalformedCall(f"the tool call is longer than {MAX_CALL_CHARS} characters")
NO_NAME: Final = MalformedCall("the tool call does not begin with the name of a tool")
TOO_MANY: Final = MalformedCall(f"more than {MAX_CALLS} tool calls in one message")


def bodies(
    text: str, data: Data, opening: str, closing: str, *thinking: tuple[str, str]
) -> list[str]:
    """Text of each call, from its opening tag to its closing one. Text of thinking is not a call.

    The last closing tag may be missing, if it was the stop string or the turn ended with the call. Text before a
    closing tag belongs to a call too, where no tag opens it: a call is not executed without it.

    Args:
        text: one turn.
        data: the form of arguments; tags inside them are a part of them.
        opening: regular expression of the tag that opens a call.
        closing: regular expression of the tag that closes it.
        thinking: tags around thinking, besides `<think>`.
    """
    plain = without_thinking(text, data, *thinking)
    tags = Tags(plain, f"{opening}|{closing}", data)
    closes = re.compile(closing)
    spans: list[tuple[int, int]] = []
    is_open = False
    start = position = 0
    while (tag := tags.after(position)) is not None:
        is_closing = closes.fullmatch(tag.group()) is not None
        has_text = bool(plain[position : tag.start()].strip())
        if is_open and (is_closing or has_text):  # a doubled opening tag opens a single call
            spans.append((start, tag.start()))
        elif is_closing and has_text:
            begin, _ = spans.pop() if spans else (position, position)
            spans.append((begin, tag.start()))
        is_open = not is_closing
        start = tag.start()
        position = tag.end()
    if is_open:
        spans.append((start, len(plain)))
    return [plain[begin:end] for begin, end in spans]


def with_calls(texts: Iterable[str], read: Callable[[str], ParsedCall]) -> tuple[ParsedCall, ...]:
    """Parses each body as a call, within the limits of length and number."""
    return limited(read(body) if len(body) <= MAX_CALL_CHARS else TOO_LONG for body in texts)


def limited(calls: Iterable[ParsedCall]) -> tuple[ParsedCall, ...]:
    """The calls up to the limit of number; further ones count as one malformed call."""
    first = tuple(islice(calls, MAX_CALLS + 1))
    if len(first) <= MAX_CALLS:
        return first
    return *first[:-1], TOO_MANY


def parse_call(body: str) -> ParsedCall:
    """Parses a call from its JSON object with `name` and `arguments`."""
    value = read_json(body)
    if isinstance(value, MalformedCall):
        return value
    return call_of(value)


def read_json(text: str) -> Any:
    """The value of a JSON text, or Malformed."""
    if len(text) > MAX_CALL_CHARS:
        return TOO_LONG
    try:
        return json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_unique_keys)
    except RecursionError:
        return MalformedCall("the tool call is nested too deeply")
    except json.JSONDecodeError as error:
        return MalformedCall(
            f"the tool call is not valid JSON ({error.msg} at character {error.pos})"
        )
    except ValueError as error:
        return MalformedCall(f"the tool call is not valid JSON ({error})")


def call_of(value: Any) -> ParsedCall:
    """The call in a JSON value: a name, and `arguments` or `parameters`; null or a missing key means no arguments.

    A value with further keys is malformed: they may be arguments, without which the call must not be executed.
    """
    value = unwrapped(value)
    if not isinstance(value, dict):
        return MalformedCall("the tool call is not a JSON object")
    name = value.get("name")
    if not isinstance(name, str) or not name:
        return MalformedCall('the tool call has no "name" that is a string')
    if len(value) > 2 or (len(value) == 2 and not value.keys() & ARGUMENT_KEYS):
        keys = ", ".join(json.dumps(key) for key in value)
        return MalformedCall(
            f'the tool call has the keys {keys[:80]}; expected "name" and "arguments"'
        )
    arguments = next((value[key] for key in ARGUMENT_KEYS if key in value), None)
    if isinstance(arguments, str):
        # Some models write the arguments as a JSON string, as in OpenAI's API.
        arguments = read_json(arguments) if arguments.strip() else None
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        return MalformedCall("the arguments of the tool call are not a JSON object")
    return checked_call(name, arguments)


def unwrapped(value: Any) -> Any:
    """A call without what OpenAI's API writes around it: `{"type": "function", "function": {...}}`."""
    if isinstance(value, dict) and value.get("type") == "function":
        value = {key: part for key, part in value.items() if key != "type"}
    if isinstance(value, dict) and value.keys() == {"function"}:
        return value["function"]
    return value


def checked_call(name: str, arguments: Mapping[str, Any]) -> ParsedCall:
    """The call, or Malformed if it cannot be encoded as UTF-8 JSON.

    JSON allows a lone surrogate and `1e999`, but they cannot be sent.
    """
    try:
        json.dumps([name, arguments], ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError):
        return MalformedCall(
            "the tool call holds a lone surrogate or a number that JSON cannot carry"
        )
    return ToolCall(name, arguments)


def _refuse_constant(constant: str) -> Any:
    raise ValueError(f"{constant} is not a JSON number")


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("a key occurs twice")
    return value


def parse_expression(source: str) -> ast.expr:
    """Returns the tree of `source`.

    Until 3.11.8, CPython counts the depth of trees for all threads at once. Where the garbage collector lets another
    parser run in the middle, `ast.parse` raises SystemError for a correct text (gh-106905); it is then parsed again.

    Raises:
        SyntaxError, ValueError, RecursionError, MemoryError: as `ast.parse` does.
    """
    while True:
        try:
            return ast.parse(source, mode="eval").body
        except SystemError as error:
            if "recursion depth mismatch" not in str(error):
                raise
