"""Tool calls with JSON between tags, one row for each dialect; Gemma's values are converted to JSON first."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from xp.envs.call_data import Data, json_value, without_thinking
from xp.episode.tool_calls import (
    CLOSE,
    MAX_CALL_CHARS,
    NO_NAME,
    OPEN,
    TOO_LONG,
    MalformedCall,
    ParsedCall,
    Syntax,
    Tools,
    bodies,
    call_of,
    limited,
    parse_call,
    parse_expression,
    read_json,
)
from xp.spec.dialect import Dialect

_SEP: Final = "<｜tool▁sep｜>"
_ACTION: Final = "<|START_ACTION|>[\n    "
_END: Final = "\n]<|END_ACTION|>"
_QUOTE: Final = '<|"|>'


def _syntax(
    form: str,
    opening: str,
    closing: str,
    data: Data,
    calls: Callable[[str], Sequence[ParsedCall]],
    write: Callable[[str, Mapping[str, Any]], str],
    thinking: tuple[tuple[str, str], ...] = (),
    answer: str = r"(?!)",
    **more: Any,
) -> Syntax:
    """One dialect.

    Args:
        form: as in Syntax, like `write`, `thinking` and `more`.
        opening: regular expression of the tag that opens a call, without capturing groups.
        closing: the same of the tag that closes it; `(?!)` if the dialect has none.
        data: the form of a call's arguments.
        calls: reads the text between the tags: a call, or a list of calls.
        answer: regular expression of tags around an answer, which are no part of it.
    """

    def read(text: str, _: Tools) -> tuple[ParsedCall, ...]:
        texts = [
            re.sub(rf"\A(?:{opening})", "", body)
            for body in bodies(text, data, opening, closing, *thinking)
        ]
        return limited(
            call
            for body in texts
            for call in ([TOO_LONG] if len(body) > MAX_CALL_CHARS else calls(body))
        )

    def plain(text: str) -> str:
        return re.sub(answer, "", without_thinking(text, None, *thinking))

    return Syntax(form, read, write, plain, thinking=thinking, **more)


def _named(
    head: str, to_json: Callable[[str], str] = str.strip
) -> Callable[[str], list[ParsedCall]]:
    """Reader of a name and its arguments.

    Args:
        head: regular expression of the text before the arguments; its group is the name.
        to_json: converts the text of the arguments to JSON.
    """
    pattern = re.compile(head)

    def calls(body: str) -> list[ParsedCall]:
        begin = pattern.match(body)
        if begin is None:
            return [NO_NAME]
        arguments = read_json(to_json(body[begin.end() :]))
        return [
            arguments
            if isinstance(arguments, MalformedCall)
            else call_of({"name": begin[1], "arguments": arguments})
        ]

    return calls


def _listed(body: str) -> list[ParsedCall]:
    """Calls of a list; their ids are left out."""
    value = read_json(body)
    if isinstance(value, MalformedCall):
        return [value]
    return [*map(_item, value if isinstance(value, list) else [value])] or [
        MalformedCall("the list of tool calls is empty")
    ]


def _item(value: Any) -> ParsedCall:
    if isinstance(value, dict):
        ids = [key for key in ("id", "tool_call_id") if isinstance(value.get(key), str | int)]
        value = {key: part for key, part in value.items() if key not in ids}
        if "name" not in value and "tool_name" in value:
            value["name"] = value.pop("tool_name")
    return call_of(value)


_mistral_call: Final = _named(r"\s*([^\s\[{]+)\s*(?:\[CALL_ID\][^\[{]*)?(?:\[ARGS\]|(?=\{))")
_GEMMA_TEXT: Final = (
    r'<\|"\|>(?P<text>.*?)<\|"\|>'
    r"""|(?<=[{\[,:\s])(?P<quoted>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')(?=\s*[,:}\]])"""
)
"""A text in Gemma's quotes, or in those of JSON or Python (models write both)."""
_GEMMA_PART: Final = re.compile(
    _GEMMA_TEXT + r'|(?<=[{,])\s*(?P<key>[^\s:,{}\[\]<"\'][^:,{}\[\]<"]*?)\s*:'
    r'|(?P<bare>[^\s:,{}\[\]<"][^,{}\[\]<"]*)',
    re.DOTALL,
)
"""A text in quotes, and a key or a text without quotes."""
_GEMMA_NESTING: Final = re.compile(rf"{_GEMMA_TEXT}|(?P<tag><tool_call\|>)|[{{}}\[\]]", re.DOTALL)


_PYTHON: Final = {"None": "null", "True": "true", "False": "false"}
"""Python's constants, which Gemma's first template writes."""


def _gemma_json(text: str) -> str:
    """Gemma's arguments as JSON: texts and keys between quotes; a bare word is a text, as the engines read it."""

    def part(match: re.Match[str]) -> str:
        if match["key"] is not None:
            return json.dumps(match["key"]) + ":"
        if match["text"] is not None:
            return json.dumps(match["text"])
        if match["quoted"] is not None:
            return json.dumps(_unquoted(match["quoted"]))
        word = match["bare"].strip()
        bare = _PYTHON.get(word, word)
        if isinstance(read_json(bare), MalformedCall):
            return json.dumps(bare)
        return bare

    return _GEMMA_PART.sub(part, text).strip()


def _gemma_end(text: str, begin: re.Match[str]) -> int | None:
    """The position after a call's arguments, or after a text in Gemma's quotes outside of a whole call."""
    if begin.group() == _QUOTE:
        closing = text.find(_QUOTE, begin.end())
        return None if closing < 0 else closing + len(_QUOTE)
    depth = 1
    for match in _GEMMA_NESTING.finditer(text, begin.end()):
        if match["tag"] is not None:
            return None
        if match.group() in "{[":
            depth += 1
        elif match.group() in "}]":
            depth -= 1
        if depth == 0:
            return match.end()
    return None


def _unquoted(literal: str) -> str:
    """The text of a string in JSON or Python; one that neither reads is taken as it is."""
    text = read_json(literal)
    if isinstance(text, str):
        return text
    try:
        return str(ast.literal_eval(parse_expression(literal)))
    except (ValueError, SyntaxError):
        return literal[1:-1]


def _gemma_value(value: Any) -> str:
    match value:
        case str():
            return f"{_QUOTE}{value}{_QUOTE}"
        case Mapping():
            return (
                "{"
                + ",".join(
                    f"{_gemma_key(key)}:{_gemma_value(child)}" for key, child in value.items()
                )
                + "}"
            )
        case list() | tuple():
            return f"[{','.join(map(_gemma_value, value))}]"
    return json.dumps(value)


def _gemma_key(key: str) -> str:
    if re.fullmatch(r"[\w.-]+", key):
        return key
    return f"{_QUOTE}{key}{_QUOTE}"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


JSON_SYNTAX: Final[Mapping[Dialect, Syntax]] = {
    Dialect.HERMES: _syntax(
        form='<tool_call>\n{"name": "<tool>", "arguments": {...}}\n</tool_call>',
        opening=OPEN,
        closing=CLOSE,
        data=json_value(rf"(?<={OPEN})\s*\{{"),
        calls=lambda body: [parse_call(body)],
        write=lambda name, arguments: (
            f"{OPEN}\n{_json({'name': name, 'arguments': arguments})}\n{CLOSE}"
        ),
    ),
    Dialect.MISTRAL: _syntax(
        form="[TOOL_CALLS]<tool>[ARGS]{...}",
        opening=r"\[TOOL_CALLS\]",
        closing=r"(?!)",
        data=json_value(r"(?<=\[ARGS\])\s*\{|(?<=\[TOOL_CALLS\])(?:\s*\[(?=\s*[\]{])|[^\[{]*\{)"),
        calls=lambda body: (
            _listed(body) if body.lstrip().startswith(("[", "{")) else _mistral_call(body)
        ),
        write=lambda name, arguments: f"[TOOL_CALLS]{name}[ARGS]{_json(arguments)}",
        thinking=(("[THINK]", "[/THINK]"),),
    ),
    Dialect.DEEPSEEK: _syntax(
        form=f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜><tool>{_SEP}{{...}}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        opening=r"(?:<｜tool▁calls▁begin｜>\s*)?<｜tool▁call▁begin｜>|<｜tool▁calls▁begin｜>",
        closing=r"<｜tool▁call▁end｜>(?:\s*<｜tool▁calls▁end｜>)?|<｜tool▁calls▁end｜>",
        data=json_value(rf"(?<={_SEP})\s*\{{|(?<=```json)\s*\{{"),
        # V3 and R1 write `function<sep>NAME` and the arguments within ```json.
        calls=_named(
            rf"\s*(?:function{_SEP})?([^\s<｜]+)\s*(?:{_SEP}|```json)",
            lambda text: text.strip().removesuffix("```"),
        ),
        write=lambda name, arguments: (
            f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{name}{_SEP}{_json(arguments)}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
        ),
    ),
    Dialect.KIMI: _syntax(
        form="<|tool_calls_section_begin|><|tool_call_begin|>functions.<tool>:0<|tool_call_argument_begin|>{...}"
        "<|tool_call_end|><|tool_calls_section_end|>",
        opening=r"(?:<\|tool_calls_section_begin\|>\s*)?<\|tool_call_begin\|>|<\|tool_calls_section_begin\|>",
        closing=r"<\|tool_call_end\|>(?:\s*<\|tool_calls_section_end\|>)?|<\|tool_calls_section_end\|>",
        data=json_value(r"(?<=<\|tool_call_argument_begin\|>)\s*\{"),
        calls=_named(r"\s*(?:functions\.)?([^\s:<]+):\d+\s*<\|tool_call_argument_begin\|>"),
        write=lambda name, arguments: (
            f"<|tool_calls_section_begin|><|tool_call_begin|>functions.{name}:0<|tool_call_argument_begin|>"
            f"{_json(arguments)}<|tool_call_end|><|tool_calls_section_end|>"
        ),
        call_id=lambda name, number: f"functions.{name}:{number}",
    ),
    Dialect.GEMMA: _syntax(
        form=f"<|tool_call>call:<tool>{{<name>:{_QUOTE}<text>{_QUOTE},<name>:<number>,...}}<tool_call|>",
        opening=r"<\|tool_call>",
        closing=r"<tool_call\|>",
        data=Data(
            r'(?<=<\|tool_call>)\s*call:[^{<]*\{|(?<=[{\[,:\s])<\|"\|>',
            _gemma_end,
        ),
        calls=_named(r"\s*call:\s*([^\s{<]+)\s*(?=\{)", _gemma_json),
        write=lambda name, arguments: (
            f"<|tool_call>call:{name}{_gemma_value(arguments)}<tool_call|>"
        ),
        thinking=(("<|channel>", "<channel|>"),),
    ),
    Dialect.COHERE: _syntax(
        form='<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "<tool>", "parameters": {...}}]<|END_ACTION|>',
        opening=r"<\|START_ACTION\|>",
        closing=r"<\|END_ACTION\|>",
        data=json_value(r"(?<=<\|START_ACTION\|>)\s*[\[{]"),
        calls=_listed,
        write=lambda name, arguments: (
            f"{_ACTION}{_json({'tool_call_id': '0', 'tool_name': name, 'parameters': arguments})}{_END}"
        ),
        thinking=(("<|START_THINKING|>", "<|END_THINKING|>"),),
        answer=r"<\|(?:START|END)_(?:RESPONSE|TEXT)\|>",
        joined=lambda calls: (
            _ACTION
            + ",\n    ".join(call.removeprefix(_ACTION).removesuffix(_END) for call in calls)
            + _END
        ),
    ),
}
"""The syntax of each dialect."""
