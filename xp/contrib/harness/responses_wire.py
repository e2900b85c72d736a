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
    RequestPictures,
    content_text,
    objects,
    refuse,
    request_of,
    tool_of,
    unknown_kind,
)
from xp.envs.base import ModelMessage

PATH: Final = "/v1/responses"
ALLOWED: Final = {
    "tool_choice": ("auto",),
    "previous_response_id": (),
    "conversation": (),
    "background": (False,),
    "top_logprobs": (0,),
    "prompt": (),
    "text.format": ("text",),
}
SERVER_TOOLS: Final = ("web_search", "file_search", "code_interpreter", "image_generation")
"""Kinds of tools that the vendor's servers run; they are left out."""
CUSTOM: Final = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
}
"""Arguments of a custom tool, whose input is a text."""
USAGE: Final = {
    "input_tokens": 0,
    "input_tokens_details": {"cached_tokens": 0},
    "output_tokens": 0,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 0,
}


def read(body: Mapping[str, Any], pictures: RequestPictures | None = None) -> ProgramRequest:
    """The request in a body, see `request_of`; raises RefusedRequest."""
    refuse(
        {**body, "text.format": ((body.get("text") or {}).get("format") or {}).get("type")}, ALLOWED
    )
    if body.get("instructions"):
        messages = [{"role": "system", "content": body["instructions"]}]
    else:
        messages = []
    given = body.get("input")
    for item in (
        [{"role": "user", "content": given}] if isinstance(given, str) else objects(body, "input")
    ):
        _add(messages, item)
    tools = []
    for name, (_, tool) in _tools(body).items():
        if tool["type"] == "custom":
            schema = {"parameters": CUSTOM}
        else:
            schema = {}
        tools.append(tool_of({**tool, **schema, "name": name}))
    takes_one_call = body.get("parallel_tool_calls") is False
    return request_of(messages, tools, body, pictures, takes_one_call=takes_one_call)


def answer(turn: ModelMessage, body: Mapping[str, Any]) -> dict[str, Any]:
    """The body of an answer."""
    return _response(body, "incomplete" if turn.is_cut else "completed", _items(turn, body))


def events(turn: ModelMessage, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The events of a streamed answer, with one delta for each item."""
    for number, (name, event) in enumerate(_events(turn, body)):
        yield {"type": name, "sequence_number": number, **event}


def _add(messages: list[dict[str, Any]], item: Mapping[str, Any]) -> None:
    """Adds an item to the messages; items of one turn of the assistant become one message."""
    kind = item.get("type", "message")
    if kind == "message":
        message = {"role": item.get("role"), "content": item.get("content")}
        if message["role"] == "assistant":
            message["content"] = content_text(message["content"])
        if message["role"] == "assistant" and messages and messages[-1]["role"] == "assistant":
            messages[-1]["content"] += message["content"]
        else:
            messages.append(message)
    elif kind in ("function_call", "custom_tool_call"):
        if kind == "function_call":
            arguments = item.get("arguments")
        else:
            arguments = json.dumps({"input": item.get("input")})
        name = _whole_name(item.get("namespace"), item.get("name"))
        function = {"name": name, "arguments": arguments}
        if not messages or messages[-1]["role"] != "assistant":
            messages.append({"role": "assistant", "content": ""})
        messages[-1].setdefault("tool_calls", []).append(
            {"id": item.get("call_id"), "function": function}
        )
    elif kind in ("function_call_output", "custom_tool_call_output"):
        result = {"role": "tool", "tool_call_id": item.get("call_id")}
        messages.append({**result, "content": item.get("output")})
    elif kind != "reasoning":  # an echo of the policy's thinking, which its tokens hold
        raise unknown_kind("input", item, "messages, function calls and their outputs")


def _tools(body: Mapping[str, Any]) -> dict[str, tuple[str | None, dict[str, Any]]]:
    """Functions and custom tools: name that the policy reads -> namespace (None: it has none) and tool.

    Raises:
        RefusedRequest: a tool of a kind that is not known.
    """
    tools = dict[str, tuple[str | None, dict[str, Any]]]()
    for tool in objects(body, "tools"):
        is_namespace = tool.get("type") == "namespace"
        namespace = str(tool.get("name")) if is_namespace else None
        for member in objects(tool, "tools") if is_namespace else [tool]:
            kind = str(member.get("type"))
            if kind.startswith(SERVER_TOOLS):
                continue
            if kind not in ("function", "custom"):
                raise unknown_kind("tools", member, "functions, custom tools or namespaces of them")
            tools[_whole_name(namespace, member.get("name"))] = namespace, member
    return tools


def _whole_name(namespace: Any, name: Any) -> str:
    """A tool's name with its namespace, so that tools of two namespaces differ."""
    if namespace:
        return f"{namespace}__{name}"
    return str(name or "")


def _items(turn: ModelMessage, body: Mapping[str, Any]) -> list[dict[str, Any]]:
    tools = _tools(body)
    calls = [(call["id"], call["function"]) for call in turn.message.get("tool_calls", ())]
    items: list[dict[str, Any]] = []
    if turn.reasoning:
        content = [{"type": "reasoning_text", "text": turn.reasoning}]
        items.append({"type": "reasoning", "id": _id("rs"), "summary": [], "content": content})
    if turn.message["content"] or not calls:
        part = {
            "type": "output_text",
            "text": turn.message["content"],
            "annotations": [],
            "logprobs": [],
        }
        items.append({"type": "message", "id": _id("msg"), "role": "assistant", "content": [part]})
    for call_id, function in calls:
        about = {"call_id": call_id, "name": function["name"]}
        arguments = function["arguments"]
        namespace, tool = tools.get(function["name"], (None, {}))
        if namespace is not None:
            about |= {"name": tool["name"], "namespace": namespace}
        if tool.get("type") == "custom":
            text = str(arguments.get("input", ""))
            items.append({"type": "custom_tool_call", "id": _id("ctc"), **about, "input": text})
        else:
            text = json.dumps(arguments, ensure_ascii=False)
            items.append({"type": "function_call", "id": _id("fc"), **about, "arguments": text})
    return [{**item, "status": "completed"} for item in items]


def _events(turn: ModelMessage, body: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    items = _items(turn, body)
    begun = _response(body, "in_progress", [])
    yield "response.created", {"response": begun}
    yield "response.in_progress", {"response": begun}
    for index, item in enumerate(items):
        place = {"item_id": item["id"], "output_index": index}
        field = {"function_call": "arguments", "custom_tool_call": "input"}.get(
            item["type"], "content"
        )
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
            if field == "arguments":
                kind = "function_call_arguments"
            else:
                kind = "custom_tool_call_input"
            yield f"response.{kind}.delta", {**place, "delta": item[field]}
            yield f"response.{kind}.done", {**place, field: item[field], "name": item["name"]}
        yield "response.output_item.done", {"output_index": index, "item": item}
    status = "incomplete" if turn.is_cut else "completed"
    yield f"response.{status}", {"response": {**_response(body, status, items), "id": begun["id"]}}


def _response(body: Mapping[str, Any], status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "id": _id("resp"),
        "object": "response",
        "created_at": int(time.time()),
        "status": status,
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
        "instructions": body.get("instructions"),
        "metadata": body.get("metadata") or {},
        "model": str(body.get("model") or "policy"),
        "output": output,
        "parallel_tool_calls": body.get("parallel_tool_calls") is not False,
        "temperature": None,
        "tool_choice": "auto",
        "tools": body.get("tools") or [],
        "top_p": None,
        "usage": USAGE if status != "in_progress" else None,
    }


def _id(kind: str) -> str:
    return f"{kind}_{secrets.token_hex(12)}"
