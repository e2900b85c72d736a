"""Requests to servers of this machine: none follows a redirect."""

from __future__ import annotations

import asyncio
from pathlib import Path

from xp.envs.target import Target
from xp.envs.transport import Transport

XP = Path(__file__).parents[2] / "xp"


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
