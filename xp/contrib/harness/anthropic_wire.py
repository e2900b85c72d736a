"""Anthropic's messages: a request's body, and an answer's body or its events."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from xp.contrib.harness.request import (
    ProgramRequest,
    ProgramTurn,
    RefusedRequest,
    messages_of,
    refuse,
    settings_of,
    text_of,
)

PATH: Final = "/v1/messages"
COUNT_PATH: Final = "/v1/messages/count_tokens"
ALLOWED: Final[Mapping[str, Sequence[Any]]] = {
    "stop_sequences": ([],),
    "output_format": (),
    "output_config": ({},),
    "mcp_servers": ([],),
}
TEXTS: Final = {"text": "text"}
SILENT: Final = ("thinking", "redacted_thinking")
"""Blocks with the policy's thinking, which its tokens hold."""
USAGE: Final = {
    "input_tokens": 0,
    "output_tokens": 0,
    "cache_creation_input_tokens": 0,
    "cache_read_input_tokens": 0,
}


def read(body: Mapping[str, Any]) -> ProgramRequest:
    """The request in a body; raises RefusedRequest."""
    refuse(body, ALLOWED)
    if (choice := body.get("tool_choice")) and choice.get("type") != "auto":
        raise RefusedRequest(
            f"tool_choice={json.dumps(choice)[:80]} is not supported: the policy writes freely; use auto"
        )
    given = body.get("messages")
    if not isinstance(given, list) or not all(isinstance(one, dict) for one in given):
        raise RefusedRequest("messages: expected a list of {role, content}")
    messages = [{"role": "system", "content": text_of(body["system"], TEXTS)}] if body.get("system") else []
    for message in given:
        messages += _plain(message)
    return ProgramRequest(messages_of(messages), _tools(body), settings_of(body))


def answer(turn: ProgramTurn, body: Mapping[str, Any]) -> dict[str, Any]:
    """The body of an answer."""
    return {**_message(body), "content": _blocks(turn), "stop_reason": _reason(turn)}


def events(turn: ProgramTurn, body: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Name and data of the events of a streamed answer, with one delta for each block."""
    for name, event in _events(turn, body):
        yield name, json.dumps({"type": name, **event})


def error(status: int, text: str) -> dict[str, Any]:
    """The body of an error."""
    kinds = {401: "authentication_error", 404: "not_found_error"}
    return {"type": "error", "error": {"type": kinds.get(status, "invalid_request_error"), "message": text}}


def _plain(message: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """A message as those of chat completions: results of tools come first, each in a message of its own."""
    content = message.get("content")
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not isinstance(blocks, list) or not all(isinstance(one, dict) for one in blocks):
        raise RefusedRequest(f"messages: expected a content of blocks, got {json.dumps(content)[:80]}")
    for one in blocks:
        if one.get("type") == "tool_result":
            yield {
                "role": "tool",
                "tool_call_id": one.get("tool_use_id"),
                "content": text_of(one.get("content"), TEXTS),
            }
    calls = [
        {"id": one.get("id"), "function": {"name": one.get("name"), "arguments": one.get("input") or {}}}
        for one in blocks
        if one.get("type") == "tool_use"
    ]
    others = [one for one in blocks if one.get("type") not in ("tool_result", "tool_use", *SILENT)]
    if others or calls or not blocks:
        plain = {"role": message.get("role"), "content": text_of(others, TEXTS)}
        yield {**plain, "tool_calls": calls} if calls else plain


def _tools(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The tools with a schema; a vendor's own ones (web search) are left out."""
    tools = []
    for tool in body.get("tools") or []:
        if isinstance(tool, dict) and isinstance(tool.get("input_schema"), dict):
            about = {"name": tool.get("name"), "description": tool.get("description") or ""}
            tools.append({"type": "function", "function": {**about, "parameters": tool["input_schema"]}})
    return tools


def _blocks(turn: ProgramTurn) -> list[dict[str, Any]]:
    calls = [
        {"type": "tool_use", "id": call["id"], "name": call["function"]["name"], "input": call["function"]["arguments"]}
        for call in turn.message.get("tool_calls", ())
    ]
    text = [{"type": "text", "text": turn.message["content"]}] if turn.message["content"] or not calls else []
    # Clients send the signature back, and nobody reads it.
    thinking = [{"type": "thinking", "thinking": turn.reasoning, "signature": "xp"}] if turn.reasoning else []
    return [*thinking, *text, *calls]


def _reason(turn: ProgramTurn) -> str:
    if turn.is_cut:
        return "max_tokens"
    return "tool_use" if "tool_calls" in turn.message else "end_turn"


def _events(turn: ProgramTurn, body: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    yield "message_start", {"message": _message(body)}
    for index, block in enumerate(_blocks(turn)):
        written: dict[str, Any] = {name: block[name] for name in ("text", "thinking", "signature") if name in block}
        empty = {**block, **dict.fromkeys(written, "")}
        if block["type"] == "tool_use":
            written, empty = {"partial_json": json.dumps(block["input"], ensure_ascii=False)}, {**block, "input": {}}
        yield "content_block_start", {"index": index, "content_block": empty}
        for name, value in written.items():
            kind = "input_json" if name == "partial_json" else name
            yield "content_block_delta", {"index": index, "delta": {"type": f"{kind}_delta", name: value}}
        yield "content_block_stop", {"index": index}
    yield "message_delta", {"delta": {"stop_reason": _reason(turn), "stop_sequence": None}, "usage": USAGE}
    yield "message_stop", {}


def _message(body: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "id": f"msg_{secrets.token_hex(12)}",
        "type": "message",
        "role": "assistant",
        "model": str(body.get("model") or "policy"),
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": USAGE,
    }
