"""Anthropic's messages: a request's body, and an answer's body or its events."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from xp.contrib.harness.request import (
    ProgramRequest,
    RequestPictures,
    objects,
    refuse,
    request_of,
    tool_of,
    unknown_kind,
)
from xp.envs.base import ModelMessage

PATH: Final = "/v1/messages"
COUNT_PATH: Final = "/v1/messages/count_tokens"
ALLOWED: Final[Mapping[str, Sequence[Any]]] = {
    "stop_sequences": ([],),
    "output_format": (),
    "output_config.format": (),
    "mcp_servers": ([],),
    "tool_choice": ("auto",),
}
SILENT: Final = ("thinking", "redacted_thinking")
"""Blocks with the policy's thinking, which its tokens hold."""
SERVER_TOOLS: Final = ("web_search_", "web_fetch_", "code_execution_")
"""Kinds of tools that the vendor's servers run; they are left out."""
USAGE: Final = {
    "input_tokens": 0,
    "output_tokens": 0,
    "cache_creation_input_tokens": 0,
    "cache_read_input_tokens": 0,
}


def read(body: Mapping[str, Any], pictures: RequestPictures | None = None) -> ProgramRequest:
    """The request in a body, see `request_of`; raises RefusedRequest."""
    inner = {"tool_choice": (body.get("tool_choice") or {}).get("type")}
    inner["output_config.format"] = (body.get("output_config") or {}).get("format")
    refuse({**body, **inner}, ALLOWED)
    if body.get("system"):
        messages = [{"role": "system", "content": body["system"]}]
    else:
        messages = []
    for message in objects(body, "messages"):
        messages += _plain(message)
    tools = []
    for tool in objects(body, "tools"):
        if "input_schema" in tool:
            tools.append(tool_of(tool, "input_schema"))
        elif not str(tool.get("type")).startswith(SERVER_TOOLS):
            raise unknown_kind("tools", tool, "tools with an input_schema")
    choice = body.get("tool_choice") or {}
    takes_one_call = choice.get("disable_parallel_tool_use") is True
    return request_of(messages, tools, body, pictures, takes_one_call=takes_one_call)


def answer(turn: ModelMessage, body: Mapping[str, Any]) -> dict[str, Any]:
    """The body of an answer."""
    return {**_message(body), "content": _blocks(turn), "stop_reason": _reason(turn)}


def events(turn: ModelMessage, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The events of a streamed answer, with one delta for each block."""
    yield {"type": "message_start", "message": _message(body)}
    for index, block in enumerate(_blocks(turn)):
        written: dict[str, Any] = {
            name: block[name] for name in ("text", "thinking", "signature") if name in block
        }
        empty = {**block, **dict.fromkeys(written, "")}
        if block["type"] == "tool_use":
            written = {"partial_json": json.dumps(block["input"], ensure_ascii=False)}
            empty = {**block, "input": {}}
        yield {"type": "content_block_start", "index": index, "content_block": empty}
        for name, value in written.items():
            kind = "input_json" if name == "partial_json" else name
            yield {
                "type": "content_block_delta",
                "index": index,
                "delta": {"type": f"{kind}_delta", name: value},
            }
        yield {"type": "content_block_stop", "index": index}
    end = {"stop_reason": _reason(turn), "stop_sequence": None}
    yield {"type": "message_delta", "delta": end, "usage": USAGE}
    yield {"type": "message_stop"}


def error(status: int, text: str) -> dict[str, Any]:
    """The body of an error."""
    kinds = {401: "authentication_error", 404: "not_found_error"}
    return {
        "type": "error",
        "error": {"type": kinds.get(status, "invalid_request_error"), "message": text},
    }


def _plain(message: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """A message as those of chat completions: results of tools come first, each in a message of its own."""
    content = message.get("content")
    blocks: Sequence[Mapping[str, Any]]
    if isinstance(content, str):
        blocks = [{"type": "text", "text": content}]
    else:
        blocks = objects(message, "content")
    for block in blocks:
        if block.get("type") == "tool_result":
            yield {
                "role": "tool",
                "tool_call_id": block.get("tool_use_id"),
                "content": block.get("content"),
            }
    calls = [
        {
            "id": block.get("id"),
            "function": {"name": block.get("name"), "arguments": block.get("input") or {}},
        }
        for block in blocks
        if block.get("type") == "tool_use"
    ]
    others = [
        block for block in blocks if block.get("type") not in ("tool_result", "tool_use", *SILENT)
    ]
    if others or calls or not blocks:
        plain = {"role": message.get("role"), "content": others}
        yield {**plain, "tool_calls": calls} if calls else plain


def _blocks(turn: ModelMessage) -> list[dict[str, Any]]:
    calls = [
        {
            "type": "tool_use",
            "id": call["id"],
            "name": call["function"]["name"],
            "input": call["function"]["arguments"],
        }
        for call in turn.message.get("tool_calls", ())
    ]
    if turn.message["content"] or not calls:
        text = [{"type": "text", "text": turn.message["content"]}]
    else:
        text = []
    # Clients send the signature back, and nobody reads it.
    if turn.reasoning:
        thinking = [{"type": "thinking", "thinking": turn.reasoning, "signature": "xp"}]
    else:
        thinking = []
    return [*thinking, *text, *calls]


def _reason(turn: ModelMessage) -> str:
    if turn.is_cut:
        return "max_tokens"
    if "tool_calls" in turn.message:
        return "tool_use"
    return "end_turn"


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
