"""A world of a real ORS server, a proxy that breaks things before it, and clients with deadlines one can wait for."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.ors_server import COUNTER, Effects, rules, running
from tests.reliability.proxy import FaultProxy
from xp.envs.base import Session, Task
from xp.envs.config import EnvConfig
from xp.envs.openreward import OpenRewardProvider
from xp.episode.episode import Episode

QUICK = {"create_timeout_s": 20.0, "call_timeout_s": 10.0, "episode_timeout_s": 120.0, "retries_per_episode": 0}
TASK = Task("fake", "train", 2)
"""Count to two."""


@dataclass
class World:
    proxy: FaultProxy
    effects: Effects
    providers: list[OpenRewardProvider] = field(default_factory=list)

    def config(self, **changes: Any) -> EnvConfig:
        return rules(
            **{"target": self.proxy.url, "variant": "counter", "allowed_origins": (self.proxy.url,), **QUICK, **changes}
        )

    def provider(self, **changes: Any) -> OpenRewardProvider:
        provider = OpenRewardProvider(self.config(**changes), os.environ)
        self.providers.append(provider)
        return provider

    def episode(self, **changes: Any) -> Episode:
        provider = self.provider(**changes)
        return Episode(TASK, lambda: provider.open(TASK), self.config(**changes))

    def session(self, **changes: Any) -> Session:
        return self.provider(**changes).open(TASK)

    def close(self) -> None:
        for provider in self.providers:
            provider.close()


@pytest.fixture
def world() -> Iterator[World]:
    server = running(COUNTER)
    with FaultProxy(server.server) as proxy:
        world = World(proxy, Effects(server.effects))
        yield world
        world.close()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/reliability" in item.path.as_posix():
            item.add_marker(pytest.mark.reliability)
