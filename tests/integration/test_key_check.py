"""Servers of engines answer nobody without the run's key."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from xp.lib import loopback_binding
from xp.worker.engines import key_check


@pytest.mark.parametrize(
    ("path", "authorization", "status"),
    [
        ("/health", None, 200),
        ("/update_weights", None, 401),
        ("/update_weights", "Bearer wrong", 401),
        ("/update_weights", "Bearer the-key", 200),
    ],
)
def test_every_path_but_the_health_check_requires_the_key(
    path: str, authorization: str | None, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(key_check.KEY, "the-key")
    sent: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        del scope, receive
        await send({"status": 200})

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        raise AssertionError("the body is not read")

    headers = [] if authorization is None else [(b"authorization", authorization.encode())]
    asyncio.run(
        key_check.EngineKeyCheck(app)(
            {"type": "http", "path": path, "headers": headers}, receive, send
        )
    )
    assert sent[0]["status"] == status


def test_a_process_without_a_key_serves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (key_check.KEY, loopback_binding.ONE_MACHINE):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(RuntimeError, match="has no key of engines"):
        key_check.EngineKeyCheck(lambda *_: None)  # type: ignore[arg-type, return-value]
