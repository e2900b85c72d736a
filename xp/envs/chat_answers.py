"""Answers of an OpenAI-compatible API, read as far as its servers agree, and their reports of failures."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from xp.lib.reading import is_count
from xp.lib.text import valid_value

TEXT_PARTS: Final = ("text", "output_text")
"""Types of the parts of a content that are text."""
SILENT_PARTS: Final = (
    "reasoning",
    "reasoning_text",
    "summary_text",
    "thinking",
    "redacted_thinking",
    "refusal",
)
"""Types of the parts of a content that may be all of it, in a message without text."""
CUT: Final = "length"
"""Finish reason of a message that a token limit cut."""
FAILED: Final = ("error", "abort")
"""Finish reasons of a model that failed: OpenRouter's, and those of vLLM and SGLang."""


@dataclass(frozen=True)
class Answer:
    """The model's output in one turn."""

    message: Mapping[str, Any]
    """The API's message; its `content` is a string or None."""
    prompt_tokens: int | None
    completion_tokens: int | None
    """Generated tokens. None means that the API does not count them."""
    is_cut: bool
    """True if `model.max_tokens` or the model's context cut the message."""


def read_answer(reply: bytes) -> Answer:
    """The answer in a reply; raises ValueError, LookupError, TypeError or RecursionError if it has no message."""
    value = json.loads(reply)
    choice = value["choices"][0]
    message = choice["message"]
    if not isinstance(message, dict):
        raise TypeError("a message that is no object")
    message = {**message, "content": answer_text(message.get("content"))}
    if choice.get("finish_reason") == "content_filter" and not any(
        message.get(name) for name in ("content", "tool_calls", "refusal")
    ):
        raise ValueError("the answer was filtered")
    message = valid_value(message)
    usage = value.get("usage")
    return Answer(
        message,
        _count(usage, "prompt_tokens"),
        _count(usage, "completion_tokens"),
        is_cut=choice.get("finish_reason") == CUT,
    )


def _count(usage: Any, name: str) -> int | None:
    if isinstance(usage, dict) and is_count(usage.get(name)):
        return int(usage[name])
    return None


def is_failure(reply: bytes) -> bool:
    """Returns whether a gateway reports a failure of the model in a reply with status 200, as OpenRouter does."""
    with suppress(ValueError, LookupError, TypeError, AttributeError, RecursionError):
        value = json.loads(reply)
        if value.get("error"):
            return True
        choice = value["choices"][0]
        return bool(choice.get("error")) or choice.get("finish_reason") in FAILED
    return False


def answer_text(content: Any) -> str | None:
    """The text of a message's `content`: a string, null, or a list of parts whose texts are joined.

    Parts of other types (reasoning, thinking, an image) are left out.

    Raises:
        TypeError, LookupError: the content is none of these, or only has parts of unknown types.
    """
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, list) or not all(isinstance(part, dict) for part in content):
        raise TypeError(
            f"a content that is {type(content).__name__}, not a string, null or a list of parts"
        )
    texts = [part["text"] for part in content if part["type"] in TEXT_PARTS]
    unknown = [part["type"] for part in content if part["type"] not in (*TEXT_PARTS, *SILENT_PARTS)]
    if unknown and not texts:
        raise TypeError(f"a content without text, with a part of type {unknown[0]!r:.60}")
    return "".join(texts)


def is_too_long(reply: bytes) -> bool:
    """Returns whether a reply means a too long dialogue: OpenAI sends a code; vLLM, SGLang, llama.cpp, Ollama only
    text."""
    text = reply.decode("utf-8", "replace").lower()
    return any(
        mark in text
        for mark in ("context_length_exceeded", "context length", "context size", "context window")
    )
