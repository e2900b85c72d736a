"""Tool calls with tagged arguments, of Qwen3.5 and GLM; the tool's schema has the arguments' types."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from xp.envs.base import ToolSpec
from xp.episode.call_data import between
from xp.episode.tool_calls import (
    Malformed,
    ParsedCall,
    bodies,
    checked_call,
    read_json,
    with_calls,
)

Tools = Callable[[], Sequence[ToolSpec]]
XML_FORM: Final = (
    "<tool_call>\n<function=<tool>>\n<parameter=<name>>\n<value>\n</parameter>\n...\n</function>\n</tool_call>"
)
GLM_FORM: Final = "<tool_call><tool>\n<arg_key><name></arg_key>\n<arg_value><value></arg_value>\n...\n</tool_call>"
_XML_TAGS: Final = re.compile(r"(<function=|</function>|<parameter=|</parameter>)")
_GLM_TAGS: Final = re.compile(r"(</?arg_key>|</?arg_value>)")
_XML_VALUE: Final = ("<parameter=", "</parameter>")
_GLM_VALUE: Final = ("<arg_value>", "</arg_value>")
_XML_DATA: Final = between(*_XML_VALUE)
_GLM_DATA: Final = between(*_GLM_VALUE)
_PYTHON: Final[Mapping[str, Any]] = {"True": True, "False": False, "None": None}
"""Python's constants, which Qwen3.5's template writes."""


def parse_xml(text: str, tools: Tools) -> tuple[ParsedCall, ...]:
    """The calls of one turn in Qwen3.5's format, which Qwen3-Coder and Nemotron 3 share; empty if there are none."""
    return with_calls(bodies(text, _XML_DATA, bare="<function="), lambda body: _xml_call(body, tools))


def parse_glm(text: str, tools: Tools) -> tuple[ParsedCall, ...]:
    """The calls of one turn in GLM's format; empty if there are none."""
    return with_calls(bodies(text, _GLM_DATA), lambda body: _glm_call(body, tools))


def write_xml(name: str, arguments: Mapping[str, Any]) -> str:
    """A call as Qwen3.5 writes it."""
    given = "".join(f"<parameter={key}>\n{_text(value)}\n</parameter>\n" for key, value in arguments.items())
    return f"<tool_call>\n<function={name}>\n{given}</function>\n</tool_call>"


def write_glm(name: str, arguments: Mapping[str, Any]) -> str:
    """A call as GLM writes it."""
    given = "".join(
        f"<arg_key>{key}</arg_key>\n<arg_value>{_text(value)}</arg_value>\n" for key, value in arguments.items()
    )
    return f"<tool_call>{name}\n{given}</tool_call>"


def _xml_call(body: str, tools: Tools) -> ParsedCall:
    pieces = _pieces(body, _XML_TAGS, *_XML_VALUE)
    if len(pieces) < 3 or pieces[1] != "<function=":
        return Malformed("the tool call has no <function=...>")
    name, closing, _ = pieces[2].partition(">")
    if not closing or not name.strip():
        return Malformed("the tool call has no name in <function=...>")
    given: dict[str, str] = {}
    for tag, piece in zip(pieces[3::2], pieces[4::2], strict=True):
        if tag == "<function=":
            return Malformed("one <tool_call> holds one <function=...>")
        if tag != "<parameter=":
            continue
        key, closing, value = piece.partition(">")
        if not closing or not key.strip() or key.strip() in given:
            return Malformed("a <parameter=...> has no name, or one that occurs twice")
        given[key.strip()] = value.removeprefix("\n").removesuffix("\n")
    return _typed_call(name.strip(), given, tools)


def _glm_call(body: str, tools: Tools) -> ParsedCall:
    pieces = _pieces(body, _GLM_TAGS, *_GLM_VALUE)
    name = pieces[0].strip()
    if not name or name.startswith(("{", "<")):
        return Malformed("the tool call does not begin with the tool's name")
    given: dict[str, str] = {}
    key: str | None = None
    for tag, piece in zip(pieces[1::2], pieces[2::2], strict=True):
        if tag == "<arg_key>":
            key = piece.strip()
        elif tag == "<arg_value>":
            if not key or key in given:
                return Malformed("an <arg_value> has no <arg_key> before it, or one that occurs twice")
            given[key], key = piece, None
    if key is not None:
        return Malformed(f"<arg_key>{key[:80]}</arg_key> has no <arg_value>")
    return _typed_call(name, given, tools)


def _pieces(body: str, tags: re.Pattern[str], opening: str, closing: str) -> list[str]:
    """The body split at its tags, which are at the odd positions; other tags inside a value are a part of it."""
    value = between(opening, closing)
    pieces: list[str] = []
    start = position = 0
    while (tag := tags.search(body, position)) is not None:
        pieces += (body[start : tag.start()], tag.group())
        start = position = tag.end()
        end = value.end(body, tag) if tag.group() == opening else None
        if end is not None:
            position = end - len(closing)
    return [*pieces, body[start:]]


def _typed_call(name: str, given: Mapping[str, str], tools: Tools) -> ParsedCall:
    """The call with values of the schema's types; the environment rejects an unknown tool."""
    schema = next((tool.parameters for tool in tools() if tool.name == name), {}) if given else {}
    properties = schema.get("properties")
    arguments: dict[str, Any] = {}
    for key, text in given.items():
        own = properties.get(key) if isinstance(properties, Mapping) else None
        kinds = json_types(own) if isinstance(own, Mapping) else frozenset()
        value = _typed(text, kinds)
        if isinstance(value, Malformed):
            return Malformed(f"{key[:80]} of the tool call {value.fault}")
        arguments[key] = value
    return checked_call(name, arguments)


def _typed(text: str, kinds: frozenset[str]) -> Any:
    """A value from its text: unchanged if the schema allows a string, else parsed as JSON (or True, False, None)."""
    stripped = text.strip()
    if kinds == {"string"}:
        return text
    if "string" in kinds:
        return None if "null" in kinds and stripped in ("null", "None") else text
    if stripped in _PYTHON:
        return _PYTHON[stripped]
    value = read_json(stripped)
    if not isinstance(value, Malformed):
        return text if isinstance(value, str) and not kinds else value
    return Malformed(f"must be JSON of type {' or '.join(sorted(kinds))}") if kinds else text


def json_types(schema: Mapping[str, Any]) -> frozenset[str]:
    """The JSON types that a property may have; empty if its schema does not say."""
    found: set[str] = set()
    own = schema.get("type")
    found |= {own} if isinstance(own, str) else {kind for kind in _listed(own) if isinstance(kind, str)}
    for branch in (*_listed(schema.get("anyOf")), *_listed(schema.get("oneOf"))):
        kind = branch.get("type") if isinstance(branch, Mapping) else None
        found |= {kind} if isinstance(kind, str) else set()
    if "enum" in schema and not found:
        found |= {"string"} if all(isinstance(value, str) for value in _listed(schema["enum"])) else set()
    return frozenset(found)


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else []


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
