"""Meaning of an OpenAI-compatible API's replies."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, Final

MOST_TOKENS: Final = 10**9
"""Largest number of tokens in one answer; a larger number is not a count."""
MOST_DEPTH: Final = 100
"""Largest depth of nesting in a message."""
TEXT_PARTS: Final = ("text", "output_text")
"""Types of the parts of a content that are text."""
SILENT_PARTS: Final = ("reasoning", "reasoning_text", "summary_text", "thinking", "redacted_thinking", "refusal")
"""Types of the parts of a content that may be all of it, in a message without text."""
CUT: Final = "length"
"""Finish reason of a message that a token limit cut."""
FAILED: Final = ("error", "abort")
"""Finish reasons of a model that failed: OpenRouter's, and those of vLLM and SGLang."""


def count(value: Any) -> int | None:
    """The value if it is a count of tokens, else None."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST_TOKENS else None


def is_failure(reply: bytes) -> bool:
    """Returns whether a gateway reports a failure of the model in a reply with status 200, as OpenRouter does."""
    with suppress(ValueError, LookupError, TypeError, AttributeError, RecursionError):
        value = json.loads(reply)
        if value.get("error"):
            return True
        choice = value["choices"][0]
        return bool(choice.get("error")) or choice.get("finish_reason") in FAILED
    return False


def is_said(message: Mapping[str, Any]) -> bool:
    """Returns whether a message has any text or tool call."""
    return any(message.get(name) for name in ("content", "tool_calls", "refusal"))


def said_text(content: Any) -> str | None:
    """The text of a message's `content`: a string, null, or a list of parts whose texts are joined.

    Parts of other types (reasoning, thinking, an image) are left out.

    Raises:
        TypeError: the content is none of these, or only has parts of unknown types.
    """
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise TypeError(f"a content that is {type(content).__name__}, not a string, null or a list of parts")
    texts: list[str] = []
    for part in content:
        if not isinstance(part, dict) or not isinstance(part.get("type"), str):
            raise TypeError("a content with a part that has no type")
        if part["type"] in TEXT_PARTS:
            if not isinstance(part.get("text"), str):
                raise TypeError("a content with a part of text that has no text")
            texts.append(part["text"])
    unknown = [part["type"] for part in content if part["type"] not in (*TEXT_PARTS, *SILENT_PARTS)]
    if unknown and not texts:
        raise TypeError(f"a content without text, with a part of type {unknown[0]!r:.60}")
    return "".join(texts)


def is_deep(value: Any) -> bool:
    """Returns whether a JSON value is nested too deeply to be written again."""
    level = [value]
    for _ in range(MOST_DEPTH):
        level = [child for one in level for child in _children(one)]
        if not level:
            return False
    return True


def _children(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def is_too_long(reply: bytes) -> bool:
    """Returns whether a reply means a too long dialogue: OpenAI sends a code; vLLM, SGLang, llama.cpp, Ollama only
    text."""
    text = reply.decode("utf-8", "replace").lower()
    return any(mark in text for mark in ("context_length_exceeded", "context length", "context size", "context window"))
