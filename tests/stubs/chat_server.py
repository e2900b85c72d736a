"""An OpenAI-compatible endpoint whose model follows a rule: a stub for tests, in a process or a thread of its own.

The model calls the first tool that it is offered, with each required argument filled from the conversation's last
quoted word, and answers `\\boxed{7}` where it is offered none.
"""

from __future__ import annotations

import json
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

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
        return {"content": f"<tool_call>{json.dumps(call)}</tool_call>" if is_told else "\\boxed{7}"}
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
            usage = {"prompt_tokens": num_read, "completion_tokens": 5, "total_tokens": num_read + 5}
            message = {"role": "assistant", **self.write(body)}
            choices = [{"index": 0, "message": message, "finish_reason": self.finish_reason}]
            about = {"id": "stub", "object": "chat.completion", "created": 1, "model": body.get("model", "stub")}
            return 200, {}, {**about, "choices": choices, "usage": usage}
        finally:
            with self.lock:
                self.in_flight -= 1


@contextmanager
def serving(server: ChatServer) -> Iterator[ChatServer]:
    """Serve on a free port of 127.0.0.1 until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status, headers, value = server.answer(body, dict(self.headers))
            data = json.dumps(value).encode()
            self.send_response(status)
            for name, text in headers.items():
                self.send_header(name, text)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128

        def handle_error(self, *_: Any) -> None:
            """Nothing: a line that drops is wanted."""

    http = Server(("127.0.0.1", 0), Handler)
    server.url = f"http://127.0.0.1:{http.server_address[1]}/v1"
    thread = threading.Thread(target=lambda: http.serve_forever(poll_interval=0.02), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        http.shutdown()
        http.server_close()


if __name__ == "__main__":
    with serving(ChatServer(latency_s=float(sys.argv[1]) if sys.argv[1:] else 0.0)) as running:
        print(running.url, flush=True)
        threading.Event().wait()
