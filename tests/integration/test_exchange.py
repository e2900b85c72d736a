"""Requests to servers of this machine: none follows a redirect."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.http_server import Reply, Request, http_server
from tests.support.sections import sampling_of
from xp.checks.contracts.jobs import DEADLINE_S
from xp.envs.target import Target
from xp.envs.transport import Transport
from xp.errors import XpError
from xp.worker.engines.completions import CompletionClient
from xp.worker.engines.conversation import GenerationRequest
from xp.worker.engines.probe import is_answering

XP = Path(__file__).parents[2] / "xp"


@pytest.fixture
def redirecting() -> Iterator[str]:
    """Redirects every request to a path of its own, where it would be answered."""

    def answer(request: Request) -> Reply:
        return Reply(
            status=200 if request.path == "/elsewhere" else 302, headers={"Location": "/elsewhere"}
        )

    with http_server(answer) as server:
        yield server.url
    assert server.paths
    assert "/elsewhere" not in server.paths


def test_an_engine_that_redirects_does_not_answer(redirecting: str) -> None:
    assert not is_answering(f"{redirecting}/health", "key", DEADLINE_S)
    sampling = sampling_of(64, 8, 32)
    with pytest.raises(XpError, match="302"):
        CompletionClient(redirecting, sampling, [], "log", key="key").answer(
            GenerationRequest([1], 8, seed=1)
        )


def test_every_opener_of_xp_follows_no_redirect() -> None:
    """`_from_hub` asks the hub without a key, and the hub redirects to where its files are; Tinker's storage likewise."""
    words = ("urlopen(", "build_opener(", "follow_redirects=True", "allow_redirects=True")
    files = {
        file.relative_to(XP).as_posix()
        for file in XP.rglob("*.py")
        if any(w in file.read_text() for w in words)
    }
    assert files == {"lib/loopback.py", "lib/models/files.py", "contrib/tinker/worker/service.py"}


def test_a_clients_proxy_is_for_other_machines_alone() -> None:
    async def trusts(url: str) -> bool:
        transport = Transport(Target(url, None, {}, {}))
        client = transport._connect()
        await transport.close()
        return client.trust_env

    assert asyncio.run(trusts("https://api.example.com"))
    assert not asyncio.run(trusts("http://127.0.0.1:8000"))
