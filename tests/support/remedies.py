"""Whether the text of a refusal or of an error says what to do."""

from __future__ import annotations

import re

VERBS = (
    *("add", "ask", "begin", "build", "call", "change", "check", "choose", "continue", "convert"),
    *("correct", "declare", "describe", "download", "drop", "end", "evaluate", "export", "free"),
    *("give", "install", "keep", "leave", "look", "lower", "make", "mark", "move", "name", "play"),
    *("publish", "put", "raise", "read", "remove", "rename", "repair", "repeat", "resume", "round"),
    *(
        "run",
        "save",
        "say",
        "see",
        "send",
        "set",
        "shorten",
        "show",
        "start",
        "stop",
        "take",
        "try",
    ),
    *("update", "use", "wait", "widen", "write"),
)
"""Imperatives that a remedy begins with."""
IMPERATIVE = re.compile(rf"(?:^|[;:,(\n] ?|\b(?:or|and|then|to) )(?:{'|'.join(VERBS)})\b")


def has_imperative(text: str) -> bool:
    """Returns whether a text says what to do."""
    return IMPERATIVE.search(text) is not None
