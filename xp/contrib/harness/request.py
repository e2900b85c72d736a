"""A program's request for the model's next message, independent of the wire, and the comparison of two requests."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from xp.contrib.conversation import ModelRequest
from xp.envs.base import Message, Picture, ProtocolError
from xp.envs.messages import ReadPicture, chat_messages, role_of
from xp.envs.picture_bytes import PictureFault, picture_data
from xp.envs.pictures import PICTURE_PARTS, digests_of, joined, parts_of, with_pictures
from xp.lib.text import word_list

SETTINGS: Final = word_list("""
    temperature top_p top_k min_p seed presence_penalty frequency_penalty
    max_tokens max_completion_tokens max_output_tokens
""")
"""Settings of a client that have no effect: the run decides how the policy is sampled. Numbers of them are recorded."""
TEXTS: Final = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
"""Type of a part that is a text -> its key with the text."""
NOTED: Final = word_list("""
    image image_url input_image audio input_audio video video_url
    file input_file document search_result resource resource_link
""")
"""Types of parts of which the policy reads a note, but for pictures if it reads these."""


class RefusedRequest(ValueError):
    """A request that cannot be answered as it is meant; the text is for the program's author."""


class RequestPictures:
    """Pictures of one program's requests; each of them repeats those before it, and is decoded once.

    Args:
        read: stores the bytes of a picture; raises PictureFault.
    """

    def __init__(self, read: ReadPicture) -> None:
        self._read = read
        self._known: dict[str, Picture] = {}

    def of(self, part: Mapping[str, Any]) -> Picture:
        """The picture of a part with base64 or a data URI; raises PictureFault for any other, and fetches none."""
        data = picture_data(part)
        digest = hashlib.sha256(data).hexdigest()
        picture = self._known.get(digest)
        if picture is None:
            picture = self._read(data)
            self._known[digest] = picture
        return picture


@dataclass(frozen=True)
class ProgramRequest:
    """Request of a program."""

    messages: Sequence[Message]
    """The whole conversation."""
    tools: Sequence[Mapping[str, Any]]
    """`{"function": {...}}` of chat completions."""
    settings: Mapping[str, float] = field(default_factory=dict)
    """The client's settings that have no effect."""
    takes_one_call: bool = False
    """Whether the program takes at most one call of a message."""


def request_of(
    messages: Any,
    tools: Sequence[Mapping[str, Any]],
    body: Mapping[str, Any],
    pictures: RequestPictures | None,
    *,
    takes_one_call: bool,
) -> ProgramRequest:
    """The request with these messages and tools.

    Many chat templates refuse, or drop, a system message that is not the first one, and two messages of the user in a
    row. So the former becomes the user's, and messages in a row become one.

    Args:
        messages: in the form of chat completions; a content may also have the parts of the other wires.
        tools: in the form of chat completions.
        body: the request's body.
        pictures: reads its pictures. None means that the policy reads text.
        takes_one_call: see ProgramRequest.

    Raises:
        RefusedRequest: the messages cannot be answered, or one before the first answer has a picture that cannot be
            read. A later one may be the policy's doing, so that a text says what is wrong with it.
    """
    plain: list[Mapping[str, Any]] = []
    is_answered = False
    for message in messages:
        content, images = _content(message.get("content"), pictures, is_answered=is_answered)
        plain.append({**message, "content": content, "pictures": images})
        is_answered |= role_of(message) == "assistant"
    try:
        read = chat_messages(plain)
    except ProtocolError as error:
        raise RefusedRequest(f"messages: {error}") from None
    if not read or read[-1]["role"] == "assistant":
        raise RefusedRequest(
            "messages: the last message must be the user's, or a tool's result; got the assistant's or none"
        )
    merged: list[Message] = []
    for one in read:
        last = merged[-1]["role"] if merged else "system"
        if one["role"] == "system" != last:
            role = "user"
        else:
            role = one["role"]
        if merged and role == last in ("system", "user"):
            merged[-1] = with_pictures(merged[-1], [*parts_of(merged[-1]), "\n\n", *parts_of(one)])
        else:
            merged.append({**one, "role": role})
    settings = {
        name: float(body[name]) for name in SETTINGS if isinstance(body.get(name), int | float)
    }
    return ProgramRequest(merged, tools, settings, takes_one_call)


def objects(body: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """The list of objects in a field; raises RefusedRequest."""
    value = body.get(name) or []
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        raise RefusedRequest(f"{name}: expected a list of objects, got {json.dumps(value)[:80]}")
    return value


def tool_of(tool: Mapping[str, Any], schema: str = "parameters") -> dict[str, Any]:
    """A tool as chat completions have it, from its name, description and the field with its schema."""
    if not tool.get("name"):
        raise RefusedRequest(f"tools: expected a tool with a name, got {json.dumps(tool)[:80]}")
    about = {"name": tool["name"], "description": tool.get("description") or ""}
    return {
        "type": "function",
        "function": {**about, "parameters": tool.get(schema) or {"type": "object"}},
    }


def unknown_kind(field: str, value: Mapping[str, Any], supported: str) -> RefusedRequest:
    """The refusal of an item or a tool of a kind that is not known."""
    if value.get("name"):
        name = f" (name {value['name']!r:.80})"
    else:
        name = ""
    return RefusedRequest(
        f"{field}: type {value.get('type')!r:.80}{name} is not supported; send {supported}"
    )


def content_text(content: Any) -> Any:
    """Content as a text, with a note in place of a picture or a file, which a policy may cause.

    Raises:
        RefusedRequest: a part of a kind that is not known.
    """
    if isinstance(content, list):
        return "\n".join(map(_part, content))
    return content or ""


def refuse(body: Mapping[str, Any], allowed: Mapping[str, Iterable[Any]]) -> None:
    """Raises RefusedRequest for a setting that would change the message and is not supported.

    Args:
        allowed: setting -> values that mean the same as its absence, beside None.
    """
    for name, values in allowed.items():
        value = body.get(name)
        if value is not None and value not in values:
            raise RefusedRequest(
                f"{name}={json.dumps(value)[:80]} is not supported, since the policy writes one message freely; leave"
                f" {name} out"
            )


def difference(
    before: ProgramRequest | ModelRequest, reply: Message, now: ProgramRequest | ModelRequest
) -> str | None:
    """Reason why a request does not extend an earlier one and the policy's reply to it; None: it does."""
    expected = [*before.messages, reply]
    if now.tools != before.tools:
        return "the program offers other tools than before"
    for number, message in enumerate(expected):
        if number >= len(now.messages):
            return f"the request has {len(now.messages)} messages, and the conversation {len(expected)}"
        if _canonical(now.messages[number]) != _canonical(message):
            if number == len(expected) - 1:
                whose = "the policy's own reply"
            else:
                whose = f"a {message['role']} message"
            return f"message {number}, {whose}, is another one than before"
    if any(message["role"] == "assistant" for message in now.messages[len(expected) :]):
        return "there is an assistant's message that the policy did not write"
    if len(now.messages) > len(expected):
        return None
    return "there is no new message"


def auxiliary_of(requests: Sequence[ModelRequest]) -> set[int]:
    """Numbers of the requests beside the program's own loop, as for a title or a summary.

    They have no tools, or other system messages than the first request with tools, as in TRL's example of opencode.
    """
    main = next((request for request in requests if request.tools), None)
    if main is None:
        return set()
    system = _system_text(main)
    return {
        number
        for number, request in enumerate(requests)
        if not request.tools or _system_text(request) != system
    }


def _system_text(request: ModelRequest) -> str:
    messages = (message for message in request.messages if message["role"] == "system")
    return "\n\n".join(message["content"] for message in messages)


def _canonical(message: Message) -> Any:
    """What two messages have in common that a program may have copied: white space, ids and spacing of JSON differ."""
    calls = [call["function"] for call in message.get("tool_calls", ())]
    return (
        message["role"],
        message["content"].split(),
        [(call["name"], call["arguments"]) for call in calls],
        digests_of([message]),
    )


def _content(
    content: Any, pictures: RequestPictures | None, *, is_answered: bool
) -> tuple[str, list[Picture]]:
    """Content as a text with a mark for each picture, and the pictures.

    Raises:
        RefusedRequest: a part of a kind that is not known, or a picture of the prompt that cannot be read.
    """
    if pictures is None or not isinstance(content, list):
        return content_text(content), []
    parts: list[str | Picture] = []
    for part in content:
        if not isinstance(part, Mapping) or part.get("type") not in PICTURE_PARTS:
            parts.append(_part(part))
            continue
        try:
            parts.append(pictures.of(part))
        except PictureFault as fault:
            if not is_answered:
                raise RefusedRequest(f"messages: {fault}") from None
            parts.append(f"[image left out: {fault}]")
    return joined(parts, between="\n")


def _part(part: Any) -> str:
    if not isinstance(part, Mapping):
        raise RefusedRequest(f"content: expected parts with a type, got {json.dumps(part)[:80]}")
    kind = part.get("type")
    if kind in NOTED:
        return f"[{kind}: not shown, the policy reads text]"
    if kind not in TEXTS:
        raise unknown_kind("content", part, "text, pictures or files")
    return str(part.get(TEXTS[kind]) or "")
