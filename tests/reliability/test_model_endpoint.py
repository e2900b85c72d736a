"""The endpoint that plays the model for verifiers' rollouts: it answers its own process, no page and no stranger."""

from __future__ import annotations

import asyncio
import http.client
import os
from typing import Any
from urllib.parse import urlsplit

import pytest

from xp.contrib.verifiers.model import KEY_VARIABLE, ModelEndpoint


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({}, 404),  # It was heard: there is no such rollout.
        ({"Authorization": "Bearer wrong"}, 401),
    ],
    ids=str,
)
def test_it_answers_no_web_page_and_nobody_without_the_key(
    monkeypatch: pytest.MonkeyPatch, change: dict[str, str], status: int
) -> None:
    monkeypatch.setenv(KEY_VARIABLE, "")
    assert asyncio.run(_asked(change)) == status


async def _asked(change: dict[str, str]) -> int:
    endpoint = ModelEndpoint()
    await endpoint.start()
    try:
        port = str(urlsplit(endpoint.url).port)
        headers = {
            "Authorization": f"Bearer {os.environ[KEY_VARIABLE]}",
            "Host": "127.0.0.1:PORT",
            **change,
        }
        return await asyncio.to_thread(
            _post, int(port), {name: one.replace("PORT", port) for name, one in headers.items()}
        )
    finally:
        await endpoint.stop()


def _post(port: int, headers: dict[str, Any]) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=250)
    try:
        connection.request("POST", "/v1/chat/completions", b"{}", headers)
        return connection.getresponse().status
    finally:
        connection.close()
