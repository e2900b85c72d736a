"""Finds texts that are far too long for a token budget by their beginning, since tokenizing 15 MB takes gigabytes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from xp.envs.base import Message

_FIRST: Final = 16
"""Characters of the first beginning per token of the budget; most texts have three to five characters per token."""
_GROWTH: Final = 4
_MARGIN: Final = 64


def beginnings(total: int, room: int) -> list[int]:
    """Growing numbers of characters below `total` for which to tokenize the beginning; none for a short text."""
    sizes, size = [], _FIRST * max(room, _MARGIN)
    while size < total:
        sizes.append(size)
        size *= _GROWTH
    return sizes


def is_far_over(num_tokens: int, room: int) -> bool:
    """Returns whether a text cannot fit, from the number of tokens of its beginning.

    Cutting a text adds only a few tokens, at the cut, which is far less than the margin here.
    """
    return num_tokens >= 2 * room + _MARGIN


def num_characters(messages: Sequence[Message]) -> int:
    """Number of characters of all contents and calls together."""
    calls = (message["tool_calls"] for message in messages if "tool_calls" in message)
    return sum(len(message["content"]) for message in messages) + sum(map(len, map(json.dumps, calls)))


def cut(messages: Sequence[Message], size: int) -> list[Message]:
    """The messages with the first `size` characters of all contents; later messages are kept, but empty."""
    found: list[Message] = []
    for message in messages:
        found.append({**message, "content": message["content"][: max(0, size)]})
        size -= len(message["content"])
    return found
