"""Formats of tool calls, and where a prompt has the tools."""

from __future__ import annotations

from collections.abc import Iterator, Set
from enum import StrEnum
from typing import Annotated

from xp.lib.plugins import Kind
from xp.spec.open_name import OpenName


class Dialect(StrEnum):
    """Format of the model's tool calls (xp.episode.dialects has a parser for each)."""

    HERMES = "hermes"
    """`<tool_call>{json}</tool_call>`: Qwen2.5, Qwen3, Hermes."""
    ACTION = "action"
    """`<action>...</action>` around the argument of the environment's only tool, or around its arguments as JSON."""
    QWEN_XML = "qwen_xml"
    """`<function=...><parameter=...>`: Qwen3.5, Qwen3-Coder, Nemotron 3."""
    LLAMA_JSON = "llama_json"
    """`{"name": ..., "parameters": {...}}`: Llama 3.1 and later."""
    PYTHONIC = "pythonic"
    """`[tool(name=value)]`: Llama 3.2 and 4, LFM2."""
    GLM = "glm"
    """`<arg_key>` and `<arg_value>`: GLM 4.5 and later."""
    HARMONY = "harmony"
    """Messages on channels: gpt-oss."""
    MISTRAL = "mistral"
    """`[TOOL_CALLS]tool[ARGS]{json}`, or a list of objects: Mistral, Ministral, Devstral."""
    DEEPSEEK = "deepseek"
    """`<｜tool▁call▁begin｜>tool<｜tool▁sep｜>{json}<｜tool▁call▁end｜>`: DeepSeek V3, R1 and V3.1."""
    KIMI = "kimi"
    """`<|tool_call_begin|>functions.tool:0<|tool_call_argument_begin|>{json}<|tool_call_end|>`: Kimi K2."""
    GEMMA = "gemma"
    """`<|tool_call>call:tool{name:value}<tool_call|>`: Gemma 4."""
    COHERE = "cohere"
    """`<|START_ACTION|>[{json}]<|END_ACTION|>`: Command R7B, Command A."""
    MINIMAX = "minimax"
    """`<invoke name=...><parameter name=...>`: MiniMax M2."""
    AUTO = "auto"
    """The format of the model's chat template (xp.episode.auto_dialect)."""


class ToolsPrompt(StrEnum):
    """Source of the tools' description, the chat template or the system prompt, and role of tool results."""

    TEMPLATE = "template"
    """The model's chat template gets the tools, and messages of the role `tool`."""
    SYSTEM = "system"
    """xp writes the tools in the system message and results in user messages, for a template without tools
    (xp.episode.prompt)."""


DialectName = Annotated[Dialect | str, OpenName(Kind.DIALECT, Dialect)]


def system_prompt_faults(of_model: DialectName, of_members: Set[DialectName]) -> Iterator[str]:
    """Faults of tools that xp writes into the system message, in the model's dialect.

    Args:
        of_model: `model.dialect`.
        of_members: dialects of the environments.
    """
    if of_members == {Dialect.ACTION}:
        yield (
            "model.tools_prompt=system writes tools into the prompt, but an action dialect has no tools: set it"
            " to template"
        )
    others = sorted(of_members - {of_model, Dialect.ACTION})
    if others:
        yield (
            f"model.tools_prompt=system writes tools in model.dialect={of_model}, and an environment's"
            f" dialect is {', '.join(others)}: give them one"
        )
