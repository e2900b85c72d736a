"""A world of a real ORS server, a proxy that breaks things before it, and clients."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.reliability.proxy import FaultProxy
from tests.support.fake_session import call
from tests.support.ors_server import COUNTER, Effects, rules, running
from xp.envs import retry
from xp.envs.base import Session, Task
from xp.envs.config import EnvConfig
from xp.envs.openreward import OpenRewardProvider
from xp.episode.episode import Episode
from xp.episode.outcome import EpisodeResult

PATIENT = {
    "create_timeout_s": 200.0,
    "call_timeout_s": 200.0,
    "episode_timeout_s": 250.0,
    "retries_per_episode": 0,
}
"""Deadlines that ordinary requests meet on a busy machine, too."""
TASK = Task("fake", "train", 2)
"""Count to two."""


@dataclass
class World:
    proxy: FaultProxy
    effects: Effects
    providers: list[OpenRewardProvider] = field(default_factory=list)

    def config(self, **changes: Any) -> EnvConfig:
        own = {
            "target": self.proxy.url,
            "variant": "counter",
            "allowed_origins": (self.proxy.url,),
        }
        return rules(**own | PATIENT | changes)

    def provider(self, **changes: Any) -> OpenRewardProvider:
        provider = OpenRewardProvider(self.config(**changes), os.environ)
        self.providers.append(provider)
        return provider

    def deadline_s(self, usual_s: float) -> float:
        """A deadline to be waited for that ordinary requests meet: `usual_s`, more where the machine is busy now."""
        began = time.monotonic()
        self.provider().splits()
        return max(usual_s, min(40 * (time.monotonic() - began), 60.0))

    def episode(self, **changes: Any) -> Episode:
        provider = self.provider(**changes)
        return Episode(TASK, lambda: provider.open(TASK), self.config(**changes))

    def session(self, **changes: Any) -> Session:
        return self.provider(**changes).open(TASK)

    def close(self) -> None:
        for provider in self.providers:
            provider.close()


def played(episode: Episode) -> EpisodeResult:
    """Counts to two."""
    for tool in ("inc", "inc", "submit"):
        episode.step(call(tool))
    return episode.settle()


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(retry, "BASE_S", 0.05)
    server = running(COUNTER)
    with FaultProxy(server.server) as proxy:
        world = World(proxy, Effects(server.effects))
        yield world
        world.close()
