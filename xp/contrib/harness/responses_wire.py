"""OpenAI's Responses without state on the server: a request's body, and an answer's body or its events."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

from xp.contrib.harness.chat_wire import error as error
from xp.contrib.harness.request import (
    ProgramRequest,
    ProgramTurn,
    RefusedRequest,
    messages_of,
    refuse,
    settings_of,
    text_of,
)

PATH: Final = "/v1/responses"
ALLOWED: Final = {
    "tool_choice": ("auto",),
    "previous_response_id": (),
    "conversation": (),
    "background": (False,),
    "top_logprobs": (0,),
    "prompt": (),
}
TEXTS: Final = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}
CUSTOM: Final = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
"""Arguments of a custom tool, whose input is a text."""
USAGE: Final = {
    "input_tokens": 0,
    "input_tokens_details": {"cached_tokens": 0},
    "output_tokens": 0,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 0,
}


def read(body: Mapping[str, Any]) -> ProgramRequest:
    """The request in a body; raises RefusedRequest."""
    refuse(body, ALLOWED)
    if ((body.get("text") or {}).get("format") or {}).get("type", "text") != "text":
        raise RefusedRequest("text.format: only text is supported: the policy writes one message freely; leave it out")
    given = body.get("input")
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    if not isinstance(items, list) or not all(isinstance(one, dict) for one in items):
        raise RefusedRequest("input: expected a text or a list of items")
    messages = [{"role": "system", "content": body["instructions"]}] if body.get("instructions") else []
    for item in items:
        _add(messages, item)
    return ProgramRequest(messages_of(messages), _tools(body), settings_of(body))


def answer(turn: ProgramTurn, body: Mapping[str, Any]) -> dict[str, Any]:
    """The body of an answer."""
    return _response(body, _items(turn, body), is_cut=turn.is_cut, is_done=True)


def events(turn: ProgramTurn, body: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Name and data of the events of a streamed answer, with one delta for each item."""
    for number, (name, event) in enumerate(_events(turn, body)):
        yield name, json.dumps({"type": name, "sequence_number": number, **event})


def _add(messages: list[dict[str, Any]], item: Mapping[str, Any]) -> None:
    """Adds an item to the messages; items of one turn of the assistant become one message."""
    kind = item.get("type", "message")
    if kind == "message":
        message = {"role": item.get("role"), "content": text_of(item.get("content"), TEXTS)}
        if message["role"] == "assistant" and messages and messages[-1]["role"] == "assistant":
            messages[-1]["content"] += message["content"]
        else:
            messages.append(message)
    elif kind in ("function_call", "custom_tool_call"):
        is_custom = kind == "custom_tool_call"
        arguments = json.dumps({"input": item.get("input")}) if is_custom else item.get("arguments")
        function = {"name": item.get("name"), "arguments": arguments}
        if not messages or messages[-1]["role"] != "assistant":
            messages.append({"role": "assistant", "content": ""})
        messages[-1].setdefault("tool_calls", []).append({"id": item.get("call_id"), "function": function})
    elif kind in ("function_call_output", "custom_tool_call_output"):
        content = text_of(item.get("output"), TEXTS)
        messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": content})
    elif kind != "reasoning":  # an echo of the policy's thinking, which its tokens hold
        raise RefusedRequest(f"input: items of type {kind!r} are not supported")


def _tools(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Functions, and custom tools as functions of one text; a vendor's own tools (web search) are left out."""
    tools = []
    for tool in body.get("tools") or []:
        kind = tool.get("type") if isinstance(tool, dict) else None
        if kind in ("function", "custom"):
            parameters = CUSTOM if kind == "custom" else tool.get("parameters") or {"type": "object"}
            about = {"name": tool.get("name"), "description": tool.get("description") or "", "parameters": parameters}
            if not about["name"]:
                raise RefusedRequest(f"tools: a tool without a name: {json.dumps(tool)[:80]}")
            tools.append({"type": "function", "function": about})
    return tools


def _items(turn: ProgramTurn, body: Mapping[str, Any]) -> list[dict[str, Any]]:
    offered = [tool for tool in body.get("tools") or [] if isinstance(tool, dict)]
    custom = {tool.get("name") for tool in offered if tool.get("type") == "custom"}
    calls = [(call["id"], call["function"]) for call in turn.message.get("tool_calls", ())]
    items: list[dict[str, Any]] = []
    if turn.reasoning:
        content = [{"type": "reasoning_text", "text": turn.reasoning}]
        items.append({"type": "reasoning", "id": _id("rs"), "summary": [], "content": content})
    if turn.message["content"] or not calls:
        part = {"type": "output_text", "text": turn.message["content"], "annotations": [], "logprobs": []}
        items.append({"type": "message", "id": _id("msg"), "role": "assistant", "content": [part]})
    for call_id, function in calls:
        name, arguments = function["name"], function["arguments"]
        if name in custom:
            text = str(arguments.get("input", ""))
            items.append(
                {"type": "custom_tool_call", "id": _id("ctc"), "call_id": call_id, "name": name, "input": text}
            )
        else:
            written = json.dumps(arguments, ensure_ascii=False)
            item = {"type": "function_call", "id": _id("fc"), "call_id": call_id, "name": name, "arguments": written}
            items.append(item)
    return [{**item, "status": "completed"} for item in items]


def _events(turn: ProgramTurn, body: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    items = _items(turn, body)
    begun = _response(body, [], is_cut=False, is_done=False)
    yield "response.created", {"response": begun}
    yield "response.in_progress", {"response": begun}
    for index, item in enumerate(items):
        place = {"item_id": item["id"], "output_index": index}
        field = {"function_call": "arguments", "custom_tool_call": "input"}.get(item["type"], "content")
        empty: Any = [] if field == "content" else ""
        yield (
            "response.output_item.added",
            {"output_index": index, "item": {**item, field: empty, "status": "in_progress"}},
        )
        if field == "content":
            (part,) = item["content"]
            place["content_index"] = 0
            more: dict[str, Any] = {"logprobs": []} if part["type"] == "output_text" else {}
            yield "response.content_part.added", {**place, "part": {**part, "text": ""}}
            yield f"response.{part['type']}.delta", {**place, "delta": part["text"], **more}
            yield f"response.{part['type']}.done", {**place, "text": part["text"], **more}
            yield "response.content_part.done", {**place, "part": part}
        else:
            kind = "function_call_arguments" if field == "arguments" else "custom_tool_call_input"
            yield f"response.{kind}.delta", {**place, "delta": item[field]}
            yield f"response.{kind}.done", {**place, field: item[field], "name": item["name"]}
        yield "response.output_item.done", {"output_index": index, "item": item}
    last = "response.incomplete" if turn.is_cut else "response.completed"
    yield last, {"response": {**_response(body, items, is_cut=turn.is_cut, is_done=True), "id": begun["id"]}}


def _response(body: Mapping[str, Any], output: list[dict[str, Any]], *, is_cut: bool, is_done: bool) -> dict[str, Any]:
    status = ("incomplete" if is_cut else "completed") if is_done else "in_progress"
    return {
        "id": _id("resp"),
        "object": "response",
        "created_at": int(time.time()),
        "status": status,
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
        "instructions": body.get("instructions"),
        "metadata": body.get("metadata") or {},
        "model": str(body.get("model") or "policy"),
        "output": output,
        "parallel_tool_calls": True,
        "temperature": None,
        "tool_choice": "auto",
        "tools": body.get("tools") or [],
        "top_p": None,
        "usage": USAGE if is_done else None,
    }


def _id(kind: str) -> str:
    return f"{kind}_{secrets.token_hex(12)}"
