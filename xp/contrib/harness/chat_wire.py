"""Chat completions: a request's body to a ProgramRequest, and a message to the answer's body or its events."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterator, Mapping
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
TEXTS: Final = {"text": "text", "refusal": "refusal"}
USAGE: Final = {
    "prompt_tokens": 0,
    "completion_tokens": 0,
    "total_tokens": 0,
    "prompt_tokens_details": {"cached_tokens": 0},
    "completion_tokens_details": {"reasoning_tokens": 0},
}
"""Clients need the object; the tokens are the trainer's."""


def read(body: Mapping[str, Any]) -> ProgramRequest:
    """The request in a body; raises RefusedRequest."""
    refuse(body, ALLOWED)
    messages = body.get("messages")
    if not isinstance(messages, list) or not all(isinstance(one, dict) for one in messages):
        raise RefusedRequest("messages: expected a list of {role, content}")
    tools = body.get("tools") or []
    for tool in tools:
        if not isinstance(tool, dict) or not isinstance(tool.get("function"), dict) or not tool["function"].get("name"):
            raise RefusedRequest(
                f"tools: expected {{type: function, function: {{name, ...}}}}, got {json.dumps(tool)[:80]}"
            )
    plain = [{**one, "content": text_of(one.get("content"), TEXTS)} for one in messages]
    return ProgramRequest(messages_of(plain), tools, settings_of(body))


def answer(turn: ProgramTurn, body: Mapping[str, Any]) -> dict[str, Any]:
    """The body of an answer."""
    return _completion(body, "chat.completion", {"message": _message(turn), "finish_reason": _reason(turn)})


def events(turn: ProgramTurn, body: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Name and data of the events of a streamed answer, with the whole message in one delta."""
    kind, delta = "chat.completion.chunk", _message(turn)
    if calls := delta.get("tool_calls"):
        delta["tool_calls"] = [{"index": number, **call} for number, call in enumerate(calls)]
    yield "", json.dumps(_completion(body, kind, {"delta": delta, "finish_reason": None}))
    last = _completion(body, kind, {"delta": {}, "finish_reason": _reason(turn)})
    yield "", json.dumps(last)
    if (body.get("stream_options") or {}).get("include_usage"):
        yield "", json.dumps({**last, "choices": [], "usage": USAGE})
    yield "", "[DONE]"


def error(status: int, text: str) -> dict[str, Any]:
    """The body of an error."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"error": {"message": text, "type": kind, "param": None, "code": None}}


def _message(turn: ProgramTurn) -> dict[str, Any]:
    (message,) = with_text_arguments([turn.message])
    thinking = {"reasoning_content": turn.reasoning} if turn.reasoning else {}
    return {**message, "content": message["content"] or (None if "tool_calls" in message else ""), **thinking}


def _reason(turn: ProgramTurn) -> str:
    if turn.is_cut:
        return "length"
    return "tool_calls" if "tool_calls" in turn.message else "stop"


def _completion(body: Mapping[str, Any], kind: str, choice: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{secrets.token_hex(12)}",
        "object": kind,
        "created": int(time.time()),
        "model": str(body.get("model") or "policy"),
        "choices": [{"index": 0, "logprobs": None, **choice}],
        **({"usage": USAGE} if kind == "chat.completion" else {}),
    }
