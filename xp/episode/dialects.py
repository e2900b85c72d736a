"""How a model's turn is read as calls: one parser and one form for each dialect."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from xp.envs.base import ToolSpec
from xp.episode import text_action
from xp.episode.config import Dialect
from xp.episode.tool_calls import HERMES_FORM, ParsedCall, parse_hermes

Tools = Callable[[], Sequence[ToolSpec]]
"""The session's tools, asked for only where the dialect needs them."""


def _hermes(text: str, tools: Tools) -> tuple[ParsedCall, ...]:
    del tools
    return parse_hermes(text)


PARSERS: Final[Mapping[Dialect, Callable[[str, Tools], tuple[ParsedCall, ...]]]] = {
    Dialect.HERMES: _hermes,
    Dialect.ACTION: text_action.parse_action,
}
FORMS: Final[Mapping[Dialect, str]] = {Dialect.HERMES: HERMES_FORM, Dialect.ACTION: text_action.FORM}
"""How a call is written in each dialect, for the message that tells the model."""
