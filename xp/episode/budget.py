"""Early check that a text is far too long for a token budget, from its beginning: tokenizing 15 MB takes gigabytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from xp.envs.base import Message

_FIRST: Final = 16
"""Characters per token of room that the first beginning has; most texts have three to five characters a token."""
_GROWTH: Final = 4
_MARGIN: Final = 64


def beginnings(total: int, room: int) -> list[int]:
    """Growing numbers of characters below `total`, from a few for each token of room; none for a text that is short."""
    sizes, size = [], _FIRST * max(room, _MARGIN)
    while size < total:
        sizes.append(size)
        size *= _GROWTH
    return sizes


def is_far_over(num_tokens: int, room: int) -> bool:
    """Returns whether a text cannot fit, given the number of tokens of its beginning.

    A cut adds tokens only where it is: a word in pieces, a mark at the end. That is far less than the margin here.
    """
    return num_tokens >= 2 * room + _MARGIN


def num_characters(messages: Sequence[Message]) -> int:
    """Characters of all contents together."""
    return sum(len(message["content"]) for message in messages)


def cut(messages: Sequence[Message], size: int) -> list[Message]:
    """The first `size` characters of the contents; every message stays, the last ones empty."""
    found = []
    for message in messages:
        found.append(Message(role=message["role"], content=message["content"][: max(0, size)]))
        size -= len(message["content"])
    return found
