"""Calls that a dialect reads of a text, with a tool of all types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xp.envs.base import ToolSpec
from xp.episode.dialects import SYNTAX
from xp.spec.dialect import Dialect

SCHEMA = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "count": {"type": "integer"},
        "share": {"type": "number"},
        "is_on": {"type": "boolean"},
        "names": {"type": "array"},
        "options": {"type": "object"},
        "maybe": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
    },
}
LOOK = ToolSpec("look", "Look.", SCHEMA)


def read(dialect: Dialect, text: str, tools: Sequence[ToolSpec] = (LOOK,)) -> Any:
    return SYNTAX[dialect].read(text, lambda: tools)
