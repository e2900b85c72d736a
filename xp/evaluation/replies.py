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
