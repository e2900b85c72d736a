"""Data of one episode for a page: messages, calls, results, rewards; all texts are escaped and cut."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from xp.report.foreign import MAX_CHARACTERS, as_dict, page_name, page_text

MAX_INLINE: Final = 120
"""Largest number of characters of arguments on one line."""


def detail(record: Mapping[str, Any], most: int | None = MAX_CHARACTERS) -> dict[str, Any]:
    """The record for a page; missing fields and fields of a wrong type are omitted.

    Args:
        record: a line of a file of trajectories.
        most: largest number of characters of one message; None: all.
    """
    messages = [_message(one, most) for one in _list(record.get("messages"))]
    for turn, place in enumerate(own_turns(record)):
        messages[place]["turn"] = turn
    outcome = as_dict(record.get("outcome"))
    void = outcome.get("void_reason")
    return {
        "messages": messages,
        "calls": [_call(one, _list(record.get("messages")), most) for one in _list(record.get("tool_calls"))],
        "step_rewards": [_number(one) for one in _list(outcome.get("step_rewards"))],
        "void_reason": None if void is None else page_text(str(void), most).text,
        "metrics": {page_name(name): _number(value) for name, value in as_dict(outcome.get("metrics")).items()},
        "env_s": [_number(one) for one in _list(record.get("env_s"))],
        "open_s": _number(record.get("open_s")),
        "started_at": _number(record.get("started_at")),
        "tokens": {page_name(name): _number(value) for name, value in as_dict(record.get("tokens")).items()},
        "extra": _written(record.get("extra"), most) if record.get("extra") else "",
    }


def own_turns(record: Mapping[str, Any]) -> list[int]:
    """Positions of the policy's own messages; the first messages may include others of the role assistant."""
    messages, turns = _list(record.get("messages")), _number(as_dict(record.get("outcome")).get("num_turns"))
    places = [place for place, one in enumerate(messages) if as_dict(one).get("role") == "assistant"]
    return places[-int(turns) :] if turns else []


def said_in(record: Mapping[str, Any]) -> str:
    """Text of all messages of an episode, for a search."""
    said = [str(as_dict(one).get("content", "")) for one in _list(record.get("messages"))]
    return "\n".join([*said, str(as_dict(record.get("outcome")).get("void_reason") or "")])


def _message(value: Any, most: int | None) -> dict[str, Any]:
    message = as_dict(value)
    content = message.get("content", "")
    shown = page_text(content if isinstance(content, str) else json.dumps(content), most)
    found = {"role": page_name(message.get("role", "")), "content": shown.text}
    return found | ({"left_out": shown.left_out} if shown.left_out else {})


def _call(value: Any, messages: Sequence[Any], most: int | None) -> dict[str, Any]:
    call = as_dict(value)
    found: dict[str, Any] = {"turn": _number(call.get("turn")), "message": _number(call.get("message"))}
    if "malformed" in call:
        found["malformed"] = page_text(str(call["malformed"]), most).text
    elif call.get("answer"):
        found["answer"] = True
    else:
        found |= {"name": page_name(call.get("name", "")), "arguments": _written(call.get("arguments"), most)}
    if isinstance(result := call.get("result"), dict):
        text = str(result.get("text", ""))
        flags = {name: True for name in ("finished", "is_call_error") if result.get(name) is True}
        found["result"] = {"reward": _number(result.get("reward")), **flags}
        said = call.get("message")
        is_said = isinstance(said, int) and 0 <= said < len(messages) and as_dict(messages[said]).get("content") == text
        if not is_said:
            found["result"]["text"] = page_text(text, most).text
    return found


def _written(value: Any, most: int | None) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return page_text(text if len(text) <= MAX_INLINE else json.dumps(value, ensure_ascii=False, indent=1), most).text


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _number(value: Any) -> float | int | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if abs(value) < 1e300 else None
