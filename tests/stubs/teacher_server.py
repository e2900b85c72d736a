"""A teacher's server: vLLM's completions with the log-probabilities of a prompt, computed by transformers."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import torch

from xp.worker.distill import Distillation

KEY = "a-key-of-the-test"


@dataclass
class TeacherServer:
    """A running server."""

    rule: Distillation
    environ: dict[str, str]
    replies: list[tuple[int, Any]] = field(default_factory=list)
    """Answers in place of the model's, first to last."""


class Completions(BaseHTTPRequestHandler):
    """vLLM's `/v1/completions` with `prompt_logprobs` (0.30, CompletionResponseChoice), computed by transformers."""

    network: ClassVar[Any]
    tokenizer: ClassVar[Any]
    replies: ClassVar[list[tuple[int, Any]]]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        status, answer = self.replies.pop(0) if self.replies else self.answer(body)
        if self.headers["Authorization"] != f"Bearer {KEY}" or self.path != "/v1/completions":
            status, answer = 401, {"error": {"message": f"who are you at {self.path}?"}}
        self.send_response(status)
        data = json.dumps(answer).encode()
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def answer(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if "prompt" not in body:
            return 400, {"error": {"message": "Field required: prompt"}}
        assert body["model"] == "the-teacher"
        assert body["max_tokens"] == 1
        ids = body["prompt"]
        with torch.no_grad():
            logprobs = torch.log_softmax(self.network(torch.tensor([ids])).logits[0].double(), -1)
        entries: list[Any] = [None]
        for at, number in enumerate(ids[1:]):
            token = {
                "logprob": float(logprobs[at, number]),
                "rank": 1,
                "decoded_token": self.tokenizer.decode([number]),
            }
            entries.append({str(number): token})
        return 200, {"choices": [{"index": 0, "text": "x", "prompt_logprobs": entries}]}

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving(network: Any, tokenizer: Any) -> Iterator[TeacherServer]:
    """Serves a model on a free port of 127.0.0.1 until the block ends."""
    replies: list[tuple[int, Any]] = []
    handler = type("Handler", (Completions,), {"network": network, "tokenizer": tokenizer, "replies": replies})
    http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=http.serve_forever, daemon=True).start()
    rule = Distillation("the-teacher", f"http://127.0.0.1:{http.server_port}/v1", "TEACHER_KEY", 1.0, False)
    try:
        yield TeacherServer(rule, {"TEACHER_KEY": KEY}, replies)
    finally:
        http.shutdown()
        http.server_close()
