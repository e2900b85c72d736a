"""Chat completions: a request's body to a ProgramRequest, and a message to the answer's body or its events."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping
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
from xp.envs.messages import with_text_arguments

PATH: Final = "/v1/chat/completions"
ALLOWED: Final = {
    "n": (1,),
    "tool_choice": ("auto",),
    "response_format": ({"type": "text"},),
    "stop": ([], ""),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "logit_bias": ({},),
    "functions": ([],),
    "prediction": (),
}
USAGE: Final = {
    "prompt_tokens": 0,
    "completion_tokens": 0,
    "total_tokens": 0,
    "prompt_tokens_details": {"cached_tokens": 0},
    "completion_tokens_details": {"reasoning_tokens": 0},
}
"""Clients need the object; the tokens are the trainer's."""


def read(body: Mapping[str, Any], pictures: RequestPictures | None = None) -> ProgramRequest:
    """The request in a body, see `request_of`; raises RefusedRequest."""
    refuse(body, ALLOWED)
    tools = []
    for tool in objects(body, "tools"):
        _check_function("tools", tool)
        tools.append(tool_of(tool.get("function") or {}))
    messages = objects(body, "messages")
    for message in messages:
        for call in objects(message, "tool_calls"):
            _check_function("tool_calls", call)
    takes_one_call = body.get("parallel_tool_calls") is False
    return request_of(messages, tools, body, pictures, takes_one_call=takes_one_call)


def _check_function(field: str, value: Mapping[str, Any]) -> None:
    """Raises RefusedRequest for a tool or a call of another kind, whose name is below its kind."""
    kind = value.get("type") or "function"
    if kind != "function":
        named = {**value, "name": (value.get(kind) or {}).get("name")}
        raise unknown_kind(field, named, "type 'function'")


def answer(turn: ModelMessage, body: Mapping[str, Any]) -> dict[str, Any]:
    """The body of an answer."""
    return _completion(
        body, "chat.completion", {"message": _message(turn), "finish_reason": _reason(turn)}
    )


def events(turn: ModelMessage, body: Mapping[str, Any]) -> Iterator[Any]:
    """The events of a streamed answer, with the whole message in one delta."""
    kind = "chat.completion.chunk"
    delta = _message(turn)
    calls = delta.get("tool_calls")
    if calls:
        delta["tool_calls"] = [{"index": number, **call} for number, call in enumerate(calls)]
    yield _completion(body, kind, {"delta": delta, "finish_reason": None})
    last = _completion(body, kind, {"delta": {}, "finish_reason": _reason(turn)})
    yield last
    if (body.get("stream_options") or {}).get("include_usage"):
        yield {**last, "choices": [], "usage": USAGE}
    yield "[DONE]"


def error(status: int, text: str) -> dict[str, Any]:
    """The body of an error."""
    if status < 500:
        kind = "invalid_request_error"
    else:
        kind = "server_error"
    return {"error": {"message": text, "type": kind, "param": None, "code": None}}


def _message(turn: ModelMessage) -> dict[str, Any]:
    (message,) = with_text_arguments([turn.message])
    if turn.reasoning:
        thinking = {"reasoning_content": turn.reasoning}
    else:
        thinking = {}
    return {
        **message,
        "content": message["content"] or (None if "tool_calls" in message else ""),
        **thinking,
    }


def _reason(turn: ModelMessage) -> str:
    if turn.is_cut:
        return "length"
    if "tool_calls" in turn.message:
        return "tool_calls"
    return "stop"


def _completion(body: Mapping[str, Any], kind: str, choice: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{secrets.token_hex(12)}",
        "object": kind,
        "created": int(time.time()),
        "model": str(body.get("model") or "policy"),
        "choices": [{"index": 0, "logprobs": None, **choice}],
        **({"usage": USAGE} if kind == "chat.completion" else {}),
    }
