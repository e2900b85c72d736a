"""Tool-call dialects: one parser, one writer and one description for each."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from xp.episode import harmony, llama_calls, text_action
from xp.episode.json_calls import JSON_SYNTAX
from xp.episode.tagged_calls import TAGGED_SYNTAX
from xp.episode.tool_calls import Syntax as Syntax
from xp.episode.tool_calls import Tools as Tools
from xp.errors import XpError
from xp.lib.load import load_object
from xp.spec.dialect import Dialect


def _write_action(_: str, arguments: Mapping[str, Any]) -> str:
    return f"<action>{json.dumps(arguments, ensure_ascii=False)}</action>"


SYNTAX: Final[Mapping[Dialect, Syntax]] = {
    **JSON_SYNTAX,
    Dialect.ACTION: Syntax(text_action.FORM, text_action.parse_action, _write_action),
    **TAGGED_SYNTAX,
    Dialect.LLAMA_JSON: Syntax(
        llama_calls.JSON_FORM, llama_calls.parse_llama_json, llama_calls.write_llama_json
    ),
    Dialect.PYTHONIC: Syntax(
        llama_calls.PYTHONIC_FORM,
        llama_calls.parse_pythonic,
        llama_calls.write_pythonic,
        joined=lambda calls: f"[{', '.join(call[1:-1] for call in calls)}]",
    ),
    Dialect.HARMONY: Syntax(
        harmony.FORM,
        lambda text, _: harmony.parse_harmony(text),
        harmony.write_harmony,
        harmony.plain_harmony,
        joined=harmony.NEXT.join,  # `<|call|>` would end the turn
        prose=harmony.write_prose,
    ),
}
"""Every dialect except `auto`, which is resolved to one of these from the chat template."""


def syntax_of(dialect: Dialect | str) -> Syntax:
    """The syntax of a dialect: xp's own, or a plugin's (`module:attribute`).

    Raises:
        XpError: the plugin's module cannot be imported here.
    """
    if isinstance(dialect, Dialect):
        return SYNTAX[dialect]
    try:
        syntax: Syntax = load_object(dialect)
    except (ImportError, AttributeError) as error:
        raise XpError(f"dialect {dialect} cannot be loaded: {error}") from error
    return syntax
