"""Tool-call dialects: one parser, one writer and one description for each."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from xp.envs.config import Dialect
from xp.episode import harmony, llama_calls, tagged_calls, text_action
from xp.episode.call_data import without_thinking
from xp.episode.tool_calls import HERMES_FORM, ParsedCall, parse_hermes
from xp.episode.tool_calls import Tools as Tools
from xp.errors import XpError
from xp.lib.load import load_object


@dataclass(frozen=True)
class Syntax:
    """One dialect."""

    form: str
    """Description of a call's format, for messages to the model."""
    read: Callable[[str, Tools], tuple[ParsedCall, ...]]
    """Parses one turn's calls; for any text, raises only the exceptions of `Tools`."""
    write: Callable[[str, Mapping[str, Any]], str]
    """Writes a call as the model does, without the token that ends the turn."""
    plain: Callable[[str], str] = without_thinking
    """Returns the text of a turn without a call."""


def _without_tools(read: Callable[[str], tuple[ParsedCall, ...]]) -> Callable[[str, Tools], tuple[ParsedCall, ...]]:
    return lambda text, _: read(text)


def _write_hermes(name: str, arguments: Mapping[str, Any]) -> str:
    call = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{call}\n</tool_call>"


def _write_action(_: str, arguments: Mapping[str, Any]) -> str:
    return f"<action>{json.dumps(arguments, ensure_ascii=False)}</action>"


SYNTAX: Final[Mapping[Dialect, Syntax]] = {
    Dialect.HERMES: Syntax(HERMES_FORM, _without_tools(parse_hermes), _write_hermes),
    Dialect.ACTION: Syntax(text_action.FORM, text_action.parse_action, _write_action),
    Dialect.QWEN_XML: Syntax(tagged_calls.XML_FORM, tagged_calls.parse_xml, tagged_calls.write_xml),
    Dialect.GLM: Syntax(tagged_calls.GLM_FORM, tagged_calls.parse_glm, tagged_calls.write_glm),
    Dialect.LLAMA_JSON: Syntax(llama_calls.JSON_FORM, llama_calls.parse_llama_json, llama_calls.write_llama_json),
    Dialect.PYTHONIC: Syntax(llama_calls.PYTHONIC_FORM, llama_calls.parse_pythonic, llama_calls.write_pythonic),
    Dialect.HARMONY: Syntax(
        harmony.FORM, _without_tools(harmony.parse_harmony), harmony.write_harmony, harmony.plain_harmony
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
