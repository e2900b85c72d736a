"""The first messages of an episode, the same for all backends: system prompt, then the environment's own."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from xp.envs.base import Message, ToolSpec

EMPTY_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}}


def tool_schema(tool: ToolSpec) -> dict[str, Any]:
    """A tool in the format of `tools=` of Hugging Face chat templates."""
    parameters = dict(tool.parameters) or EMPTY_PARAMETERS
    return {
        "type": "function",
        "function": {"name": tool.name, "description": tool.description, "parameters": parameters},
    }


def tool_schemas(tools: Sequence[ToolSpec]) -> list[dict[str, Any]]:
    return [tool_schema(tool) for tool in tools]


def opening_messages(template: str | None, prompt: Sequence[Message], tools: Sequence[ToolSpec]) -> list[Message]:
    """First messages of the dialogue.

    Args:
        template: system prompt; `{tools}` in it becomes the tools' schemas as JSON lines, `{tool_names}` their names.
            Other braces are kept. None: no system message from xp.
        prompt: the environment's first messages. A system message among them is appended to xp's, since most chat
            templates support only one.
    """
    if template is None:
        return list(prompt)
    lines = "\n".join(json.dumps(schema, ensure_ascii=False) for schema in tool_schemas(tools))
    names = ", ".join(tool.name for tool in tools)
    system = "".join({"{tools}": lines, "{tool_names}": names}.get(piece, piece) for piece in _pieces(template))
    if prompt and prompt[0]["role"] == "system":
        return [Message(role="system", content=f"{system}\n\n{prompt[0]['content']}"), *prompt[1:]]
    return [Message(role="system", content=system), *prompt]


def _pieces(template: str) -> list[str]:
    """The template split at its placeholders, so that a placeholder within a tool's text is not replaced."""
    pieces = [template]
    for placeholder in ("{tools}", "{tool_names}"):
        pieces = [
            part
            for piece in pieces
            for index, text in enumerate(piece.split(placeholder))
            for part in ([placeholder, text] if index else [text])
        ]
    return pieces
