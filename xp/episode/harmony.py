"""gpt-oss' harmony format: a turn is messages on channels; a message with a recipient is a tool call."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from xp.envs.call_data import Tags, json_value
from xp.episode.tool_calls import MalformedCall, ParsedCall, call_of, read_json, with_calls

FORM: Final = "<|channel|>commentary to=functions.<tool> <|constrain|>json<|message|>{...}<|call|>"
MESSAGE: Final = "<|message|>"
NEXT: Final = "<|end|><|start|>assistant"
"""Text between two messages of one turn."""
_ENDS: Final = r"<\|(?:start|end|call|return)\|>"
_DATA: Final = json_value(rf"(?<={re.escape(MESSAGE)})\s*\{{")
_RECIPIENT: Final = re.compile(r"\bto=([^\s<]{1,256})")
_CHANNEL: Final = re.compile(r"<\|channel\|>\s*(\w{1,32})")
_NAMESPACE: Final = "functions."


def parse_harmony(text: str) -> tuple[ParsedCall, ...]:
    """The calls of one turn, in order; empty if no message has a recipient."""
    return with_calls(
        (body for header, body in _messages(text) if _recipient(header)), _parsed_call
    )


def plain_harmony(text: str) -> str:
    """Text of the turn for the user: the channel `final`, or the whole text if there are no channels."""
    if MESSAGE not in text:
        return text
    finals = [body for header, body in _messages(text) if _channel(header) == "final"]
    return "\n".join(body.partition(MESSAGE)[2] for body in finals)


def write_harmony(name: str, arguments: Mapping[str, Any]) -> str:
    """A call as gpt-oss writes it; `<|call|>` is the token that ends the turn."""
    body = json.dumps(arguments, ensure_ascii=False)
    return f"<|channel|>commentary to={_NAMESPACE}{name} <|constrain|>json{MESSAGE}{body}"


def write_prose(text: str, is_before_call: bool) -> str:
    """A text as gpt-oss writes it: an answer, or what it says to the user before a call; a text on channels as it
    is."""
    if MESSAGE in text:
        return f"{text}{NEXT}" if is_before_call else text
    if is_before_call:
        return f"<|channel|>commentary{MESSAGE}{text}{NEXT}"
    return f"<|channel|>final{MESSAGE}{text}"


def _messages(text: str) -> Iterator[tuple[str, str]]:
    """Header and full text of each message; parsing a call's arguments needs both."""
    tags = Tags(text, _ENDS, _DATA)
    start: int | None = 0
    while start is not None:
        end = tags.after(start)
        piece = text[start : len(text) if end is None else end.start()]
        header, mark, _ = piece.partition(MESSAGE)
        if mark or (_channel(header) and _recipient(header)):
            yield header, piece
        start = None if end is None else end.end()


def _parsed_call(piece: str) -> ParsedCall:
    header, mark, body = piece.partition(MESSAGE)
    if not mark:
        return MalformedCall(f"the message to {_recipient(header)[:80]} has no {MESSAGE}")
    arguments = read_json(body) if body.strip() else None
    if isinstance(arguments, MalformedCall):
        return arguments
    return call_of({"name": _recipient(header).removeprefix(_NAMESPACE), "arguments": arguments})


def _recipient(header: str) -> str:
    match = _RECIPIENT.search(header)
    if match is None or match.group(1) in ("assistant", "user"):
        return ""
    return match.group(1)


def _channel(header: str) -> str:
    match = _CHANNEL.search(header)
    return "" if match is None else match.group(1)
