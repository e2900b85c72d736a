"""Converts messages in the form of chat completions, as data and packages have them, to `Message`."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable, Mapping
from itertools import takewhile
from typing import Any, Final

from xp.envs.base import Message, Picture, ProtocolError
from xp.envs.picture_bytes import PictureFault
from xp.envs.pictures import OFF, is_picture_part, joined, own_pictures

ROLES: Final = {
    **{role: role for role in ("system", "user", "assistant", "tool")},
    "developer": "system",
    "human": "user",
    "gpt": "assistant",
    "model": "assistant",
    "function": "tool",
    "observation": "tool",
    "ipython": "tool",
}
"""Role as people write it, in small letters -> role of chat completions; a chat template drops other roles silently."""


def role_of(message: Any) -> str | None:
    """Role of a message in the words of chat completions. None means that it has none of them."""
    if isinstance(message, Mapping) and isinstance(message.get("role"), str):
        return ROLES.get(message["role"].lower())
    return None


def call_id(number: int) -> str:
    """Id of a call that has none; templates of Mistral's refuse one without exactly nine letters and digits."""
    return f"call{number:05}"


def chat_call(identity: str, name: str, arguments: Any) -> dict[str, Any]:
    """A call in the form of chat completions."""
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": arguments}}


ReadPicture = Callable[[Any], Picture]
"""Stores a picture as people write it (xp.envs.picture_bytes.picture_data)."""


def chat_messages(value: Any, read: ReadPicture | None = None) -> list[Message]:
    """The messages with plain values alone, and the results of a turn in the order of its calls.

    Most templates pair results and calls by their order. A result without name or id gets those of the call that it
    answers.

    Args:
        value: the messages.
        read: reads the parts that are pictures. None means that they are refused.

    Raises:
        ProtocolError: with the number of the message, what is expected and what it has.
    """
    if isinstance(value, str | Mapping) or not isinstance(value, Iterable):
        raise ProtocolError(f"expected a list of {{role, content}}, got {value!r:.80}")
    messages: list[Message] = []
    unanswered: dict[str, str] = {}
    """Id of each call without a result -> name of its tool."""
    num_calls = 0
    for number, entry in enumerate(value):
        role = role_of(entry)
        if role is None:
            expected = f"{{role, content}} with a role of {', '.join(sorted({*ROLES.values()}))}"
            raise ProtocolError(f"message {number}: expected {expected}, got {entry!r:.80}")
        given = entry.get("tool_calls") or filter(None, [entry.get("function_call")])
        calls = [_tool_call(call, number, num_calls + place) for place, call in enumerate(given)]
        message = Message(role=role, content="")
        message["content"], pictures = _content(entry, number, bool(calls), read)
        if pictures:
            message["pictures"] = pictures
        if calls:
            message["tool_calls"] = calls
        num_calls += len(calls)
        unanswered |= {call["id"]: call["function"]["name"] for call in calls}
        answered = str(entry.get("tool_call_id") or "")
        if message["role"] == "tool" and not answered:
            of_name = (key for key, name in unanswered.items() if name == entry.get("name"))
            answered = next(of_name, next(iter(unanswered), ""))
        name = entry.get("name") or unanswered.get(answered)
        if name:
            message["name"] = str(name)
        if answered:
            message["tool_call_id"] = answered
            unanswered.pop(answered, None)
        messages.append(message)
    _order_results(messages)
    return messages


def _order_results(messages: list[Message]) -> None:
    """Sorts the results after each turn by its calls, in place."""
    for at, turn in enumerate(messages):
        places = {call["id"]: place for place, call in enumerate(turn.get("tool_calls", ()))}
        if places:
            rest = messages[at + 1 :]
            results = list(takewhile(lambda message: message["role"] == "tool", rest))
            messages[at + 1 : at + 1 + len(results)] = sorted(
                results, key=lambda result: places.get(result.get("tool_call_id", ""), len(places))
            )


def with_text_arguments(messages: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The messages with the arguments of calls as JSON text, as chat completions and some chat templates have them."""
    copies = [copy.deepcopy(dict(message)) for message in messages]
    for message in copies:
        for call in message.get("tool_calls", ()):
            function = call["function"]
            function["arguments"] = json.dumps(function["arguments"], ensure_ascii=False)
    return copies


def _content(
    message: Mapping[str, Any], number: int, has_calls: bool, read: ReadPicture | None
) -> tuple[str, list[Picture]]:
    """Content as text, texts of parts that follow each other on lines of their own; and its pictures."""
    content = message.get("content")
    if content is None and has_calls:
        return "", []
    if message.get("pictures") and isinstance(content, str):  # a message of xp's own
        return str.__str__(content), own_pictures(message)
    parts: list[str | Picture] = []
    for part in content if isinstance(content, list | tuple) else [content]:
        if is_picture_part(part) and read is not None:
            try:
                parts.append(read(part))
            except PictureFault as fault:
                raise PictureFault(f"message {number}: {fault}") from None
            continue
        text = part
        if isinstance(part, Mapping) and part.get("type") in ("text", "input_text"):
            text = part.get("text")
        if not isinstance(text, str):
            fix = f" ({OFF})" if is_picture_part(part) else ""
            raise ProtocolError(
                f"message {number}: expected a text as content, got {text!r:.80}{fix}"
            )
        parts.append(str.__str__(text))
    return joined(parts, between="\n")


def _tool_call(call: Any, number: int, place: int) -> dict[str, Any]:
    """A call with an id and its arguments as an object; most chat templates refuse them as JSON text."""
    try:
        function = call.get("function") or call
        name = function["name"]
        arguments = function.get("arguments")
        value = (
            json.loads((arguments if isinstance(arguments, str) else json.dumps(arguments)) or "{}")
            or {}
        )
        if not isinstance(name, str) or not name or not isinstance(value, dict):
            raise TypeError
    except (AttributeError, LookupError, TypeError, ValueError, RecursionError):
        expected = "a tool call with a name and arguments as an object"
        raise ProtocolError(f"message {number}: expected {expected}, got {call!r:.80}") from None
    return chat_call(str(call.get("id") or call_id(place)), str.__str__(name), value)
