"""A teacher's server: vLLM's completions with the log-probabilities of a prompt, computed by transformers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from tests.support.http_server import Reply, Request, http_server
from tests.support.sections import distill
from xp.spec import Distill

KEY = "a-key-of-the-test"


@dataclass
class TeacherServer:
    """A running server."""

    rule: Distill
    environ: dict[str, str]
    replies: list[tuple[int, Any]] = field(default_factory=list)
    """Answers in place of the model's, first to last."""


@contextmanager
def serving(network: Any, tokenizer: Any) -> Iterator[TeacherServer]:
    """Serves a model on a free port of 127.0.0.1 until the block ends.

    It is vLLM's `/v1/completions` with `prompt_logprobs` (0.30, CompletionResponseChoice), computed by transformers.
    """
    replies: list[tuple[int, Any]] = []

    def answer(request: Request) -> Reply:
        if request.headers["authorization"] != f"Bearer {KEY}" or request.path != "/v1/completions":
            return Reply({"error": {"message": f"who are you at {request.path}?"}}, 401)
        if replies:
            status, value = replies.pop(0)
            return Reply(value, status)
        if "prompt" not in request.json:
            return Reply({"error": {"message": "Field required: prompt"}}, 400)
        assert request.json["model"] == "the-teacher"
        assert request.json["max_tokens"] == 1
        ids = request.json["prompt"]
        with torch.no_grad():
            logprobs = torch.log_softmax(network(torch.tensor([ids])).logits[0].double(), -1)
        entries: list[Any] = [None]
        for at, number in enumerate(ids[1:]):
            token = {
                "logprob": float(logprobs[at, number]),
                "rank": 1,
                "decoded_token": tokenizer.decode([number]),
            }
            entries.append({str(number): token})
        return Reply({"choices": [{"index": 0, "text": "x", "prompt_logprobs": entries}]})

    with http_server(answer) as server:
        rule = distill("the-teacher", url=f"{server.url}/v1", key="TEACHER_KEY")
        yield TeacherServer(rule, {"TEACHER_KEY": KEY}, replies)
