"""`dialect: sample`: a call is `CALL tool {json}` on one line."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from xp.episode.dialects import Syntax, Tools
from xp.episode.tool_calls import MalformedCall, ParsedCall, ToolCall

FORM = 'CALL <tool> {"name": value}'


def read(text: str, tools: Tools) -> tuple[ParsedCall, ...]:
    del tools
    return tuple(
        _one(name, raw) for name, raw in re.findall(r"^CALL (\w+) (.*)$", text, re.MULTILINE)
    )


def _one(name: str, raw: str) -> ParsedCall:
    try:
        arguments = json.loads(raw)
    except (ValueError, RecursionError) as error:
        return MalformedCall(str(error))
    return (
        ToolCall(name, arguments)
        if isinstance(arguments, dict)
        else MalformedCall("arguments are an object")
    )


def write(name: str, arguments: Mapping[str, Any]) -> str:
    return f"CALL {name} {json.dumps(arguments)}"


SYNTAX = Syntax(FORM, read, write)
