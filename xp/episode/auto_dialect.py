"""`dialect: auto`: renders a tool call with the model's chat template, and finds the dialect that parses it.

The program that has the tokenizer resolves it once per stage, and writes `dialect.json` beside `episode.json`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, Final

from xp.envs.base import ToolSpec
from xp.envs.config import EpisodeConfig
from xp.envs.messages import chat_call
from xp.episode.dialects import SYNTAX
from xp.episode.prompt import tool_schema
from xp.episode.tokens import ChatTokens
from xp.episode.tool_calls import ToolCall
from xp.errors import XpError
from xp.lib.atomic import write_atomically
from xp.lib.models.clock import dated
from xp.lib.reading import config_of
from xp.spec.dialect import Dialect

FILE: Final = "dialect.json"
ARGUMENTS: Final[dict[str, Any]] = {"room": "hall", "times": 2}
TOOL: Final = ToolSpec(
    "look",
    "Look at a room.",
    {"type": "object", "properties": {"room": {"type": "string"}, "times": {"type": "integer"}}},
)


def detect(tokenizer: Any, arguments: Mapping[str, Any]) -> Dialect:
    """The dialect of calls in the model's chat template.

    Args:
        tokenizer: a Hugging Face tokenizer.
        arguments: arguments of its chat template.

    Raises:
        XpError: no dialect, or more than one, parses the template's own call.
    """
    expected = (ToolCall(TOOL.name, ARGUMENTS),)
    dialects: list[Dialect] = []
    # Kimi's template writes the id of a call instead of its name; DeepSeek's takes the arguments as text.
    for identity, values in product(
        ("call00001", f"functions.{TOOL.name}:0"), (ARGUMENTS, json.dumps(ARGUMENTS))
    ):
        turn = _rendered_call(tokenizer, arguments, identity, values)
        dialects = [
            dialect
            for dialect, syntax in SYNTAX.items()
            if syntax.read(turn, lambda: (TOOL,)) == expected
        ]
        if dialects:
            break
    if len(dialects) > 1 and Dialect.LLAMA_JSON in dialects:
        dialects.remove(
            Dialect.LLAMA_JSON
        )  # its parser also finds an object within another dialect's tags
    if len(dialects) != 1:
        names = ", ".join(SYNTAX)
        raise XpError(
            "model.dialect=auto: the model's chat template writes no tool call that xp can read; give the dialect in"
            f" which the model writes them: model.dialect={{{names}}}, or a plugin's (docs/extending.md)"
        )
    return dialects[0]


def resolve(stage: Path, chat: ChatTokens) -> None:
    """Writes a stage's `dialect.json` if a member of its mixture has `auto`; raises XpError as `detect` does."""
    config = config_of(stage / "episode.json", EpisodeConfig.from_json)
    if any(member.dialect is Dialect.AUTO for member in config.members.values()):
        dialect = detect(chat.tokenizer, chat.arguments)
        write_atomically(
            stage / FILE, json.dumps({"dialect": dialect.value, "found_by": "chat template"}) + "\n"
        )
        print(f"dialect: {dialect.value}, by the chat template", flush=True)


def resolved(config: EpisodeConfig, stage: Path) -> EpisodeConfig:
    """The mixture with the dialect that `resolve` found; raises XpError if `resolve` was not called."""
    if all(member.dialect is not Dialect.AUTO for member in config.members.values()):
        return config
    try:
        dialect = Dialect(json.loads((stage / FILE).read_text())["dialect"])
    except FileNotFoundError:
        raise XpError(
            f"{stage / FILE} does not exist: the dialect of model.dialect=auto was not read from a tokenizer"
        ) from None
    members = {
        name: member.model_copy(update={"dialect": dialect})
        if member.dialect is Dialect.AUTO
        else member
        for name, member in config.members.items()
    }
    return replace(config, members=members)


def _rendered_call(tokenizer: Any, arguments: Mapping[str, Any], identity: str, values: Any) -> str:
    """The assistant's turn as the template renders it; empty if the template does not support calls."""
    question = {"role": "user", "content": "Where is the key?"}
    called = {
        "role": "assistant",
        "content": "",
        "tool_calls": [chat_call(identity, TOOL.name, values)],
    }
    tools = [tool_schema(TOOL)]
    options = {"tools": tools, "tokenize": False, **arguments, **dated(tokenizer, arguments, tools)}
    try:
        before = tokenizer.apply_chat_template([question], **options)
        after = tokenizer.apply_chat_template([question, called], **options)
    except Exception:  # a template without support of tool calls may raise anything
        return ""
    # A dialect without a closing tag has no other end than the token.
    if after.startswith(before):
        return str(after[len(before) :]).rstrip().removesuffix(tokenizer.eos_token or "")
    return ""
