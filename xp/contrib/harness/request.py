"""A program's request for the model's next message, independent of the wire, and the comparison of two requests."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from xp.envs.base import Message, ProtocolError
from xp.envs.conversation import ModelRequest
from xp.envs.messages import chat_messages

SETTINGS: Final = (
    *("temperature", "top_p", "top_k", "min_p", "seed", "presence_penalty", "frequency_penalty"),
    *("max_tokens", "max_completion_tokens", "max_output_tokens"),
)
"""Settings of a client that have no effect: the run decides how the policy is sampled. Numbers of them are recorded."""


class RefusedRequest(ValueError):
    """A request that cannot be answered as it is meant; the text is for the program's author."""


@dataclass(frozen=True)
class ProgramRequest:
    """Request of a program."""

    messages: Sequence[Message]
    """The whole conversation."""
    tools: Sequence[Mapping[str, Any]]
    """`{"function": {...}}` of chat completions."""
    settings: Mapping[str, float] = field(default_factory=dict)
    """The client's settings that have no effect."""


Asked = ProgramRequest | ModelRequest


@dataclass(frozen=True)
class ProgramTurn:
    """The model's message for a program."""

    message: Message
    is_cut: bool = False
    """True if a token limit ended it."""
    reasoning: str = ""
    """Its thinking, beside the message."""


def messages_of(messages: Any) -> list[Message]:
    """The messages of a request; raises RefusedRequest for others than texts, calls and results."""
    try:
        read = chat_messages(messages)
    except ProtocolError as error:
        raise RefusedRequest(f"messages: {error}") from None
    if not read or read[-1]["role"] == "assistant":
        raise RefusedRequest(
            "messages: the last message must be the user's, or a tool's result; got the assistant's or none"
        )
    return read


def text_of(content: Any, kinds: Mapping[str, str]) -> Any:
    """Content as a text, with a note in place of each part that is no text, which a policy may cause.

    Args:
        content: a text, None, or a list of parts.
        kinds: type of a part -> its key with a text.
    """
    if not isinstance(content, list):
        return content or ""
    texts = [_part(one, kinds) for one in content]
    return "\n".join(texts)


def settings_of(body: Mapping[str, Any]) -> dict[str, float]:
    """The numbers among a request's settings that have no effect."""
    return {name: float(body[name]) for name in SETTINGS if isinstance(body.get(name), int | float)}


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


def difference(before: Asked, reply: Message, now: Asked) -> str | None:
    """Reason why a request does not extend an earlier one and the policy's reply to it; None: it does."""
    expected = [*before.messages, reply]
    if now.tools != before.tools:
        return "the program offers other tools than before"
    for number, message in enumerate(expected):
        if number >= len(now.messages):
            return f"the request has {len(now.messages)} messages, and the conversation {len(expected)}"
        if _canonical(now.messages[number]) != _canonical(message):
            whose = "the policy's own reply" if number == len(expected) - 1 else f"a {message['role']} message"
            return f"message {number}, {whose}, is another one than before"
    if any(message["role"] == "assistant" for message in now.messages[len(expected) :]):
        return "there is an assistant's message that the policy did not write"
    return None if len(now.messages) > len(expected) else "there is no new message"


def _canonical(message: Message) -> Any:
    """What two messages have in common that a program may have copied: white space, ids and spacing of JSON differ."""
    calls = [call["function"] for call in message.get("tool_calls", ())]
    return message["role"], message["content"].split(), [(one["name"], one["arguments"]) for one in calls]


def _part(part: Any, kinds: Mapping[str, str]) -> str:
    kind = str(part.get("type")) if isinstance(part, Mapping) else "part"
    if kind not in kinds:
        return f"[{kind[:40]}: not shown, the policy reads text]"
    return str(part.get(kinds[kind]) or "")
