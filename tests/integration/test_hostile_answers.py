"""Answers of a hostile HTTP server: each client of xp ends with a typed error, in time and in bounded memory."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.stubs.raw_server import raw_server, whole
from tests.support.sections import sampling_of
from xp.envs.chat_answers import Answer
from xp.envs.chat_api import Api, Unavailable
from xp.errors import ExitCode, XpError
from xp.lib.models.files import _from_hub, hub_text
from xp.results.evaluation.settings import settings
from xp.worker.engines.completions import CompletionClient
from xp.worker.engines.conversation import GenerationRequest

MESSAGES = [{"role": "user", "content": "Hi"}]
DEEP = b"[" * 200_000
SAMPLING = sampling_of(64, 8, 32)


def asked(url: str, **given: Any) -> Answer:
    words = {f"model.{name}": value for name, value in {"max_attempts": 2, **given}.items()}
    return Api(settings({"model.url": f"{url}/v1", **words}).model, "m", None, lambda _: None).ask(
        MESSAGES, [], 0.0
    )


def said(message: Any, **more: Any) -> bytes:
    return json.dumps({"choices": [{"message": message}], **more}).encode()


FAR_BELOW_THE_ANSWER_S = 60.0
"""Time for what has a deadline of 0.4 s, while `dripping` takes at least 100 s."""


def dripping(head: bytes) -> Iterator[bytes]:
    yield head
    for _ in range(1000):
        time.sleep(0.1)
        yield b" "


def test_a_lone_surrogate_of_an_endpoint_is_replaced() -> None:
    call = {"id": "\ud83d", "function": {"name": "\ud83d", "arguments": "{}"}}
    with raw_server(lambda: whole(said({"content": "cut \ud83d", "tool_calls": [call]}))) as url:
        message = asked(url).message
    assert message["content"] == "cut \ufffd"
    assert message["tool_calls"] == [
        {"id": "\ufffd", "function": {"name": "\ufffd", "arguments": "{}"}}
    ]
    refusal = json.dumps({"error": {"message": "cut \ud83d"}}).encode()
    with (
        raw_server(lambda: whole(refusal, "500 X")) as url,
        pytest.raises(Unavailable, match="HTTP 500: cut \ufffd"),
    ):
        asked(url)


@pytest.mark.parametrize(
    "head",
    [b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n"],
    ids=["body", "body without a length"],
)
def test_an_answer_that_comes_byte_by_byte_ends_at_the_deadline(head: bytes) -> None:
    began = time.monotonic()
    with raw_server(lambda: dripping(head)) as url:
        with pytest.raises(Unavailable, match=r"TimeoutError: no complete answer in 0\.4 s"):
            asked(url, timeout_s=0.4, max_attempts=1)
    assert time.monotonic() - began < FAR_BELOW_THE_ANSWER_S


def test_an_answer_that_breaks_off_is_tried_again() -> None:
    answers = iter(([whole(said({"content": "a"}))[0][:-5]], whole(said({"content": "b"}))))
    with raw_server(lambda: next(answers)) as url:
        assert asked(url).message == {"content": "b"}


@pytest.mark.parametrize("body", [DEEP, b"{}"], ids=["deep", "drip"])
def test_a_hub_that_answers_badly_leaves_a_model_unknown(
    body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("xp.lib.models.files.HUB_TIMEOUT_S", 0.4)
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    began = time.monotonic()
    slow = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"
    with raw_server(lambda: whole(body) if body is DEEP else dripping(slow)) as url:
        monkeypatch.setenv("HF_ENDPOINT", url)
        hub_text.cache_clear()
        assert _from_hub("Org/Model") is None
    hub_text.cache_clear()
    assert time.monotonic() - began < FAR_BELOW_THE_ANSWER_S


def test_an_engine_that_answers_badly_is_lost() -> None:
    with (
        raw_server(lambda: [b"nonsense\r\n\r\n"]) as url,
        pytest.raises(XpError, match="the vLLM server failed") as caught,
    ):
        CompletionClient(url, SAMPLING, [], "log").answer(GenerationRequest([1], 8, seed=1))
    assert caught.value.code is ExitCode.ENGINE
