"""Llama's two formats of tool calls: a JSON object with `parameters`, and a Python list of calls (never executed).

Neither has tags, so a text that calls none of the session's tools is an answer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from xp.episode.call_data import MAX_FAILED, Data, json_object, without_thinking
from xp.episode.pythonic import NotPythonic, calls_end, read_calls
from xp.episode.tool_calls import (
    ARGUMENT_KEYS,
    MAX_CALLS,
    Malformed,
    ParsedCall,
    Tools,
    checked_call,
    limited,
    parse_call,
    unwrapped,
    with_calls,
)

JSON_FORM: Final = '{"name": "<tool>", "parameters": {...}}'
PYTHONIC_FORM: Final = "[<tool>(<name>=<value>, ...)]"
_OBJECT: Final = re.compile(r'\{\s*"')
_OBJECTS: Final = json_object(_OBJECT.pattern)
_LIST: Final = re.compile(r"(?<!\\)\[\s*[^\W\d][\w.-]{0,127}\s*\(")  # `\[` begins a formula of LaTeX
_LISTS: Final = Data(_LIST.pattern, lambda text, begin: calls_end(text, begin.start()))
_NAMED: Final = re.compile(r'(?:\{\s*"(?:type|function)"\s*:\s*(?:"function"\s*,\s*)?)*\{?\s*"name"\s*:\s*"([^"\\]*)"')
"""The beginning of an object that is a call."""
_DECODER: Final = json.JSONDecoder()


def parse_llama_json(text: str, tools: Tools) -> tuple[ParsedCall, ...]:
    """The calls of one turn; empty if no object with arguments has the name of a tool.

    Args:
        text: one turn.
        tools: called only if the turn has an object with a name.
    """
    objects = list(_objects(without_thinking(text, _OBJECTS)))
    names = {tool.name for tool in tools()} if objects else set()
    if not any(has_arguments and name in names for _, name, has_arguments in objects):
        return ()
    return with_calls((body for body, name, has_arguments in objects if has_arguments or name in names), parse_call)


def parse_pythonic(text: str, tools: Tools) -> tuple[ParsedCall, ...]:
    """The calls of the turn's lists; empty if no list calls a tool. LFM2 puts tokens around the list.

    Args:
        text: one turn.
        tools: called only if the turn has a list that begins with a call.
    """
    said = without_thinking(text, _LISTS)
    begin = _LIST.search(said)
    names = set() if begin is None else {tool.name for tool in tools()}
    calls: list[ParsedCall] = []
    called: set[str] = set()
    num_failed = 0
    while begin is not None and num_failed < MAX_FAILED and len(calls) <= MAX_CALLS:
        try:
            pairs, position = read_calls(said, begin.start())
            calls += [checked_call(name, arguments) for name, arguments in pairs]
            called.update(name for name, _ in pairs)
        except NotPythonic as error:
            calls.append(Malformed(f"the tool calls are not a Python list of calls ({error})"))
            called.add(name := begin.group().strip("[(").strip())
            # The lists after the beginning of a call may be a part of it.
            position, num_failed = begin.end(), MAX_FAILED if name in names else num_failed + 1
        begin = _LIST.search(said, position)
    return () if called.isdisjoint(names) else limited(calls)


def write_llama_json(name: str, arguments: Mapping[str, Any]) -> str:
    """A call as Llama 3.1 writes it."""
    return json.dumps({"name": name, "parameters": arguments}, ensure_ascii=False)


def write_pythonic(name: str, arguments: Mapping[str, Any]) -> str:
    """A call as Llama 3.2, Llama 4 and LFM2 write it."""
    return f"[{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})]"


def _objects(said: str) -> Iterator[tuple[str, str, bool]]:
    """The JSON objects with a name: text, name, and whether it has arguments. One that does not end is the last."""
    position = num_failed = 0
    while (begin := _OBJECT.search(said, position)) is not None:
        try:
            value, position = _DECODER.raw_decode(said, begin.start())
        except (ValueError, RecursionError):
            position, num_failed = begin.end(), num_failed + 1
            named = _NAMED.match(said, begin.start())
            if named is not None or num_failed == MAX_FAILED:
                yield said[begin.start() :], "" if named is None else named[1], True
                return
            continue
        own = unwrapped(value)
        if isinstance(own, dict) and isinstance(own.get("name"), str):
            yield said[begin.start() : position], own["name"], not own.keys().isdisjoint(ARGUMENT_KEYS)
