"""Llama's two formats of tool calls: a JSON object with `parameters`, and a Python list of calls (never executed)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from xp.episode.call_data import Data, json_object, without_thinking
from xp.episode.pythonic import NotPythonic, calls_end, read_calls
from xp.episode.tool_calls import (
    MAX_CALL_CHARS,
    MAX_CALLS,
    Malformed,
    ParsedCall,
    call_of,
    checked_call,
    read_json,
)

JSON_FORM: Final = '{"name": "<tool>", "parameters": {...}}'
PYTHONIC_FORM: Final = "[<tool>(<name>=<value>, ...)]"
PYTHON_TAG: Final = "<|python_tag|>"
_OBJECT: Final = re.compile(r'\{\s*"(?:name|parameters|type|function)"\s*:')
_LIST: Final = re.compile(r"(?<!\\)\[\s*[A-Za-z_][\w.-]{0,127}\(")  # `\[` begins a formula of LaTeX
_BETWEEN: Final = re.compile(rf"(?:[\s;,]|{re.escape(PYTHON_TAG)})*")
_OBJECTS: Final = json_object(_OBJECT.pattern)
_LISTS: Final = Data(_LIST.pattern, lambda text, begin: calls_end(text, begin.start()))
_DECODER: Final = json.JSONDecoder()


def parse_llama_json(text: str) -> tuple[ParsedCall, ...]:
    """The calls of one turn, separated by `;` or nothing; empty if no object begins like a call."""
    return tuple(_limited(_objects(without_thinking(text, _OBJECTS))))


def parse_pythonic(text: str) -> tuple[ParsedCall, ...]:
    """The calls of the turn's first list; empty if no list begins with a call. LFM2 puts tokens around the list."""
    said = without_thinking(text, _LISTS)
    begin = _LIST.search(said)
    if begin is None:
        return ()
    try:
        found = read_calls(said[begin.start() : begin.start() + MAX_CALL_CHARS])
    except NotPythonic as error:
        return (Malformed(f"the tool calls are not a Python list of calls ({error})"),)
    return tuple(_limited(checked_call(name, arguments) for name, arguments in found))


def write_llama_json(name: str, arguments: Mapping[str, Any]) -> str:
    """A call as Llama 3.1 writes it."""
    return json.dumps({"name": name, "parameters": arguments}, ensure_ascii=False)


def write_pythonic(name: str, arguments: Mapping[str, Any]) -> str:
    """A call as Llama 3.2, Llama 4 and LFM2 write it."""
    return f"[{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})]"


def _objects(said: str) -> Iterator[ParsedCall]:
    begin = _OBJECT.search(said)
    position = -1 if begin is None else begin.start()
    while position >= 0:
        rest = said[position : position + MAX_CALL_CHARS]
        try:
            _, length = _DECODER.raw_decode(rest)
        except (ValueError, RecursionError):
            fault = read_json(rest)  # says what is wrong
            yield fault if isinstance(fault, Malformed) else Malformed("the tool call is not valid JSON")
            return
        value = read_json(rest[:length])
        yield value if isinstance(value, Malformed) else _json_call(value)
        gap = _BETWEEN.match(said, position + length)
        assert gap is not None  # it matches the empty text
        position = gap.end() if said.startswith("{", gap.end()) else -1


def _json_call(value: Any) -> ParsedCall:
    inner = value.get("function") if isinstance(value, dict) else None
    own = inner if isinstance(inner, dict) else value
    is_named = isinstance(own, dict) and "parameters" in own
    return call_of(own, "parameters" if is_named else "arguments")


def _limited(calls: Iterator[ParsedCall]) -> Iterator[ParsedCall]:
    for number, call in enumerate(calls):
        if number == MAX_CALLS:
            yield Malformed(f"more than {MAX_CALLS} tool calls in one message")
            return
        yield call
