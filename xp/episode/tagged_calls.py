"""Tool calls with tagged arguments, of Qwen3.5, GLM and MiniMax; the tool's schema has the arguments' types."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Final

from xp.envs.call_data import up_to
from xp.episode.json_schema import (
    Schema,
    allowed_types,
    allowed_values,
    allows,
    branches,
    properties,
    required,
)
from xp.episode.tool_calls import (
    CLOSE,
    NO_NAME,
    OPEN,
    MalformedCall,
    ParsedCall,
    Syntax,
    Tools,
    bodies,
    checked_call,
    read_json,
    with_calls,
)
from xp.spec.dialect import Dialect

_PYTHON: Final[Mapping[str, Any]] = {"True": True, "False": False, "None": None}
"""Python's constants, which Qwen3.5's template writes."""


@dataclass(frozen=True)
class _Form:
    """One dialect, in regular expressions; the tool and an argument have their names as a group."""

    opening: str
    closing: str
    tool: re.Pattern[str]
    argument: re.Pattern[str]
    end: re.Pattern[str]
    """The tag that ends a value: what follows it is no text, else it is a part of the value (models write code)."""


def _syntax(
    call: str,
    parameter: str,
    *,
    opening: str,
    closing: str,
    tool: str,
    argument: str,
    value: str,
    end: str,
    after: str,
) -> Syntax:
    """One dialect.

    Args:
        call: template of a call, with `{name}` and `{arguments}`.
        parameter: template of an argument, with `{key}` and `{value}`.
        opening: regular expression of the tag that opens a call, like all that follow.
        closing: tag that closes it.
        tool: beginning of a call, with the tool as a group.
        argument: beginning of an argument, with its name as a group.
        value: beginning of a value.
        end: tag that ends a value.
        after: tags after a value.
    """
    last = re.compile(rf"{end}\s*(?={after}|\Z)")
    form = _Form(opening, closing, re.compile(tool), re.compile(argument), last)
    data = up_to(value, last)

    def read(text: str, tools: Tools) -> tuple[ParsedCall, ...]:
        return with_calls(
            bodies(text, data, opening, closing), lambda body: _parsed_call(body, tools, form)
        )

    def write(name: str, arguments: Mapping[str, Any]) -> str:
        texts = {
            key: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            for key, value in arguments.items()
        }
        return call.format(
            name=name,
            arguments="".join(parameter.format(key=key, value=text) for key, text in texts.items()),
        )

    any_arguments = parameter.format(key="<name>", value="<value>") + "...\n"
    return Syntax(call.format(name="<tool>", arguments=any_arguments), read, write)


TAGGED_SYNTAX: Final[Mapping[Dialect, Syntax]] = {
    # Of Qwen3-Coder and Nemotron 3 too; Qwen3-Coder leaves out `<tool_call>` at times.
    Dialect.QWEN_XML: _syntax(
        "<tool_call>\n<function={name}>\n{arguments}</function>\n</tool_call>",
        "<parameter={key}>\n{value}\n</parameter>\n",
        opening=rf"(?:{OPEN}\s*)?<function=|{OPEN}",
        closing=rf"</function>(?:\s*{CLOSE})?|{CLOSE}",
        tool=rf"(?:{OPEN}\s*)?<function=([^<>]+)>",
        argument=r"<parameter=([^<>]+)>\n?",
        value="<parameter=",
        end=r"\n?</parameter>",
        after=rf"<parameter=|</function>|{CLOSE}",
    ),
    Dialect.GLM: _syntax(
        "<tool_call>{name}\n{arguments}</tool_call>",
        "<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n",
        opening=OPEN,
        closing=CLOSE,
        tool=rf"{OPEN}\s*([^\s<>{{}}]+)",
        argument=r"<arg_key>([^<>]+)</arg_key>\s*<arg_value>",
        value="<arg_value>",
        end="</arg_value>",
        after=rf"<arg_key>|{CLOSE}",
    ),
    Dialect.MINIMAX: _syntax(
        '<minimax:tool_call>\n<invoke name="{name}">\n{arguments}</invoke>\n</minimax:tool_call>',
        '<parameter name="{key}">{value}</parameter>\n',
        opening=r"(?:<minimax:tool_call>\s*)?<invoke name=|<minimax:tool_call>",
        closing=r"</invoke>(?:\s*</minimax:tool_call>)?|</minimax:tool_call>",
        tool=r'(?:<minimax:tool_call>\s*)?<invoke name="([^"<>]+)">',
        argument='<parameter name="([^"<>]+)">',
        value="<parameter name=",
        end="</parameter>",
        after="<parameter name=|</invoke>|</minimax:tool_call>",
    ),
}
"""The syntax of each dialect."""


def value_of(text: str, options: Sequence[Schema]) -> Any:
    """The value that has this text; Malformed: the schema allows none.

    Args:
        text: the value as the model wrote it.
        options: branches of the value's schema. Where one of them allows any text, the others come first.
    """
    stripped = text.strip()
    value = _PYTHON[stripped] if stripped in _PYTHON else read_json(stripped)
    listed = [branch for branch in options if allowed_values(branch) is not None]
    for candidate in (text, stripped, *(() if isinstance(value, MalformedCall) else (value,))):
        if any(allows(branch, candidate) for branch in listed):
            return candidate
    if not isinstance(value, str | MalformedCall) and any(
        allows(branch, value) for branch in options
    ):
        return value
    kinds = frozenset[str]().union(*map(allowed_types, options))
    if "string" in kinds:
        return text
    if isinstance(value, MalformedCall):
        return MalformedCall(f"must be JSON of type {' or '.join(sorted(kinds))}")
    return value


def is_omitted(text: str, options: Sequence[Schema]) -> bool:
    """Returns whether an optional argument is left out: an empty tag, which XML has instead of null.

    The empty text is a value where the tool would put another one in its place.
    """
    takes_text = any("string" in allowed_types(branch) for branch in options)
    default = next((branch["default"] for branch in options if "default" in branch), None)
    if takes_text:
        return not text and default in (None, "")
    return not text.strip()


def _parsed_call(body: str, tools: Tools, form: _Form) -> ParsedCall:
    """The call, with values of the schema's types; the environment rejects an unknown tool."""
    begin = form.tool.match(body)
    name, rest = ("", "") if begin is None else (begin[1].strip(), body[begin.end() :].strip())
    if not name:
        return NO_NAME
    if rest:
        root = next((tool.parameters for tool in tools() if tool.name == name), {})
    else:
        root = {}
    declared = properties(root)
    needed = required(root)
    texts = _texts(rest, form, declared.keys())
    if isinstance(texts, MalformedCall):
        return texts
    arguments: dict[str, Any] = {}
    for key, text in texts.items():
        options = branches(declared.get(key), root)
        if key in declared and key not in needed and is_omitted(text, options):
            continue
        value = value_of(text, options)
        if isinstance(value, MalformedCall):
            return MalformedCall(f"{key[:80]} of the tool call {value.fault}")
        arguments[key] = value
    return checked_call(name, arguments)


def _texts(body: str, form: _Form, declared: Set[str]) -> dict[str, str] | MalformedCall:
    """The texts of the arguments, by name; Malformed if one does not end, or a part belongs to none."""
    texts: dict[str, str] = {}
    position = 0
    while position < len(body):
        argument = form.argument.match(body, position)
        if argument is None:
            return MalformedCall(
                f"the tool call has text that belongs to no argument: {body[position:][:80]}"
            )
        key = argument[1].strip()
        start = argument.end()
        if key in texts:
            return MalformedCall(f"the argument {key[:80]} of the tool call occurs twice")
        end = form.end.search(body, start)
        texts[key] = value = body[start : start if end is None else end.start()]
        others = any(
            match[1].strip() in declared - texts.keys() for match in form.argument.finditer(value)
        )
        close = re.search(form.closing, value)
        if (
            end is None
            or others
            or (close is not None and re.search(form.opening, value[close.end() :]))
        ):
            return MalformedCall(f"{key[:80]} of the tool call has a value that is not closed")
        position = end.end()
    return texts
