"""An OpenAI-compatible endpoint whose model follows a rule: a stub for tests.

The model calls the first tool that it is offered, with each required argument filled from the conversation's last
quoted word, and answers `\\boxed{7}` where it is offered none.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.support import http_server
from tests.support.http_server import Request

Reply = tuple[int, Mapping[str, str], Any]
"""Status, headers and body."""


def rule(body: Mapping[str, Any]) -> dict[str, Any]:
    """The message of the model."""
    text = " ".join(str(one.get("content") or "") for one in body["messages"])
    tools = body.get("tools") or []
    words = re.findall(r"'([^']*)'", text)
    if not tools:
        is_told = "<tools>" in text
        call = {"name": "echo", "arguments": {"text": words[-1] if words else ""}}
        return {
            "content": f"<tool_call>{json.dumps(call)}</tool_call>" if is_told else "\\boxed{7}"
        }
    function = tools[0]["function"]
    required = function["parameters"].get("required", [])
    arguments = dict.fromkeys(required, words[-1] if words else "x")
    call = {
        "id": "call_1",
        "type": "function",
        "function": {"name": function["name"], "arguments": json.dumps(arguments)},
    }
    return {"content": None, "tool_calls": [call]}


@dataclass
class ChatServer:
    """Requests to the endpoint and its answers; both may be changed while it runs."""

    write: Callable[[Mapping[str, Any]], dict[str, Any]] = rule
    before: Callable[[int], Reply | None] = lambda _: None
    """From the number of a request, from 1, to a reply in place of the model's."""
    finish_reason: str = "stop"
    latency_s: float = 0.0
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    url: str = ""
    in_flight: int = 0
    most_in_flight: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def answer(self, body: dict[str, Any], headers: dict[str, str]) -> Reply:
        with self.lock:
            self.requests.append(body)
            self.headers.append(headers)
            number = len(self.requests)
            self.in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            time.sleep(self.latency_s)
            if (instead := self.before(number)) is not None:
                return instead
            num_read = 10 * len(body["messages"])
            usage = {
                "prompt_tokens": num_read,
                "completion_tokens": 5,
                "total_tokens": num_read + 5,
            }
            message = {"role": "assistant", **self.write(body)}
            choices = [{"index": 0, "message": message, "finish_reason": self.finish_reason}]
            about = {
                "id": "stub",
                "object": "chat.completion",
                "created": 1,
                "model": body.get("model", "stub"),
            }
            return 200, {}, {**about, "choices": choices, "usage": usage}
        finally:
            with self.lock:
                self.in_flight -= 1


@contextmanager
def serving(server: ChatServer) -> Iterator[ChatServer]:
    """Serve on a free port of 127.0.0.1 until the block ends."""

    def answer(request: Request) -> http_server.Reply:
        status, headers, body = server.answer(request.json, dict(request.headers))
        return http_server.Reply(body, status, headers)

    with http_server.http_server(answer) as running:
        server.url = f"{running.url}/v1"
        yield server
