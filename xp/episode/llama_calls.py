"""Llama's two formats of tool calls: a JSON object with `parameters`, and a Python list of calls (never executed).

Neither has tags, so a text that calls none of the session's tools is an answer.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from xp.envs.call_data import MAX_FAILED, Data, json_value, without_thinking
from xp.episode.tool_calls import (
    ARGUMENT_KEYS,
    MAX_CALL_CHARS,
    MAX_CALLS,
    MalformedCall,
    ParsedCall,
    Tools,
    checked_call,
    limited,
    parse_call,
    parse_expression,
    unwrapped,
    with_calls,
)

JSON_FORM: Final = '{"name": "<tool>", "parameters": {...}}'
PYTHONIC_FORM: Final = "[<tool>(<name>=<value>, ...)]"
_OBJECT: Final = re.compile(r'\{\s*"')
_OBJECTS: Final = json_value(_OBJECT.pattern)
_LIST: Final = re.compile(
    r"(?<!\\)\[\s*[^\W\d][\w.-]{0,127}\s*\("
)  # `\[` begins a formula of LaTeX
_LISTS: Final = Data(_LIST.pattern, lambda text, begin: calls_end(text, begin.start()))
_NAMED: Final = re.compile(
    r'(?:\{\s*"(?:type|function)"\s*:\s*(?:"function"\s*,\s*)?)*\{?\s*"name"\s*:\s*"([^"\\]*)"'
)
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
    return with_calls(
        (body for body, name, has_arguments in objects if has_arguments or name in names),
        parse_call,
    )


def parse_pythonic(text: str, tools: Tools) -> tuple[ParsedCall, ...]:
    """The calls of the turn's lists; empty if no list calls a tool. LFM2 puts tokens around the list.

    Args:
        text: one turn.
        tools: called only if the turn has a list that begins with a call.
    """
    plain = without_thinking(text, _LISTS)
    begin = _LIST.search(plain)
    if begin is None:
        return ()
    names = {tool.name for tool in tools()}
    calls: list[ParsedCall] = []
    called: set[str] = set()
    num_failed = 0
    while begin is not None and num_failed < MAX_FAILED and len(calls) <= MAX_CALLS:
        try:
            pairs, position = read_calls(plain, begin.start())
            calls += [checked_call(name, arguments) for name, arguments in pairs]
            called.update(name for name, _ in pairs)
        except NotPythonic as error:
            calls.append(MalformedCall(f"the tool calls are not a Python list of calls ({error})"))
            name = begin.group().strip("[(").strip()
            called.add(name)
            # The lists after the beginning of a call may be a part of it.
            position = begin.end()
            num_failed = MAX_FAILED if name in names else num_failed + 1
        begin = _LIST.search(plain, position)
    if called.isdisjoint(names):
        return ()
    return limited(calls)


def write_llama_json(name: str, arguments: Mapping[str, Any]) -> str:
    """A call as Llama 3.1 writes it."""
    return json.dumps({"name": name, "parameters": arguments}, ensure_ascii=False)


def write_pythonic(name: str, arguments: Mapping[str, Any]) -> str:
    """A call as Llama 3.2, Llama 4 and LFM2 write it."""
    return f"[{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})]"


def _objects(text: str) -> Iterator[tuple[str, str, bool]]:
    """The JSON objects with a name: text, name, and whether it has arguments. One that does not end is the last."""
    position = num_failed = 0
    while (begin := _OBJECT.search(text, position)) is not None:
        try:
            value, position = _DECODER.raw_decode(text, begin.start())
        except (ValueError, RecursionError):
            position = begin.end()
            num_failed = num_failed + 1
            named = _NAMED.match(text, begin.start())
            if named is not None or num_failed == MAX_FAILED:
                yield text[begin.start() :], "" if named is None else named[1], True
                return
            continue
        content = unwrapped(value)
        if isinstance(content, dict) and isinstance(content.get("name"), str):
            yield (
                text[begin.start() : position],
                content["name"],
                not content.keys().isdisjoint(ARGUMENT_KEYS),
            )


MAX_DEPTH: Final = 32
"""Largest depth of brackets in an argument; Python's parser is safe to call below it."""
_PART: Final = re.compile(
    r"""(?P<string>'''(?:[^\\]|\\.)*?'''|\"{3}(?:[^\\]|\\.)*?\"{3}|'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")"""
    r"""|(?P<open>[\[({])|(?P<close>[\])}])|(?P<code>[^\[\](){}'"#]+)""",  # a comment would be unread text
    re.DOTALL,
)
_NAME: Final = r"(?<![\w.-])[^\W\d][\w.-]*"
_TOOL: Final = re.compile(rf"{_NAME}(?=\s*\Z)")
_ARGUMENT: Final = re.compile(rf"{_NAME}(?=\s*=(?!=))")
_ESCAPE: Final = re.compile(r"\\(.)|[\n\r\0]", re.DOTALL)
_ESCAPES: Final = "\n\r\\'\"abfnrtv01234567xNuU"
_JSON: Final = {"true": True, "false": False, "null": None}
"""Constants of JSON, since LFM2's template writes a dictionary as JSON."""


class NotPythonic(ValueError):
    """The text is not a list of calls; the message says why."""


def read_calls(text: str, start: int) -> tuple[list[tuple[str, dict[str, Any]]], int]:
    """Names and arguments of the `[name(key=value, ...), ...]` that begins at `start`, and the position after it.

    Raises:
        NotPythonic: there is no such list.
    """
    source, names, end = _source(text, start)
    try:
        tree = parse_expression(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise NotPythonic(str(getattr(error, "msg", "it is no Python"))[:80]) from None
    if not isinstance(tree, ast.List):
        raise NotPythonic("it is no list")
    return [_parsed_call(node, names) for node in tree.elts], end


def calls_end(text: str, start: int) -> int | None:
    """The position after the list that begins at `start`. None means that it does not end."""
    try:
        return _source(text, start)[2]
    except NotPythonic:
        return None


def _source(text: str, start: int) -> tuple[str, dict[str, str], int]:
    """The list as Python has it, the names of its tools and arguments by `_0`, `_1`, ..., and the position after it.

    These stand for the names in it, which may be none in Python: `web-search`, `from`.
    """
    parts: list[str] = []
    names: dict[str, str] = {}

    def number(name: re.Match[str]) -> str:
        names[f"_{len(names)}"] = name.group()
        return next(reversed(names))

    depth = 0
    position = start
    while (part := _PART.match(text, position, start + MAX_CALL_CHARS)) is not None:
        position = part.end()
        piece = part.group()
        if part.lastgroup == "code" and depth in (1, 2):
            piece = (_TOOL if depth == 1 else _ARGUMENT).sub(number, piece)
        elif part.lastgroup == "string" and not parts[-1].endswith(("r", "R")):
            piece = _ESCAPE.sub(_escaped, piece)
        depth += (part.lastgroup == "open") - (part.lastgroup == "close")
        parts.append(piece)
        if depth == 0:
            return "".join(parts), names, position
        if depth > MAX_DEPTH + 2:
            raise NotPythonic("it is nested too deeply")
    raise NotPythonic(f"it ends, or is no literal, at character {position - start}")


def _escaped(part: re.Match[str]) -> str:
    """Part of a text as Python must have it: line breaks are escaped, a backslash that escapes nothing is itself."""
    code = part.group(1)
    if code is None:
        return repr(part.group())[1:-1]
    if code in _ESCAPES:
        return part.group()
    return f"\\{part.group()}"


def _parsed_call(node: ast.expr, names: dict[str, str]) -> tuple[str, dict[str, Any]]:
    if (
        not isinstance(node, ast.Call)
        or not isinstance(node.func, ast.Name)
        or node.func.id not in names
    ):
        raise NotPythonic("a part of it is no call of a tool")
    pairs = [(names.get(str(keyword.arg)), keyword.value) for keyword in node.keywords]
    if node.args or any(name is None for name, _ in pairs):
        raise NotPythonic("an argument has no name")
    arguments = {str(name): _value(value) for name, value in pairs}
    if len(arguments) != len(pairs):
        raise NotPythonic("an argument occurs twice")
    return names[node.func.id], arguments


def _value(node: ast.expr | None) -> Any:
    match node:
        case ast.Constant(value=str() | int() | float() | None):
            return node.value
        case ast.Name(id=name) if name in _JSON:
            return _JSON[name]
        case ast.UnaryOp(
            op=ast.USub() | ast.UAdd(), operand=ast.Constant(value=int() | float() as number)
        ):
            if isinstance(node.op, ast.USub):
                return -number
            return number
        case ast.List(elts=items) | ast.Tuple(elts=items) | ast.Set(elts=items):
            return [_value(item) for item in items]
        case ast.Dict(keys=keys, values=values):
            pairs = [(_value(key), _value(value)) for key, value in zip(keys, values, strict=True)]
            if all(isinstance(key, str) for key, _ in pairs) and len(dict(pairs)) == len(pairs):
                return dict(pairs)
            raise NotPythonic("a key of a dictionary is no text, or occurs twice")
    raise NotPythonic("an argument is no literal; variables, calls and sums cannot be arguments")
