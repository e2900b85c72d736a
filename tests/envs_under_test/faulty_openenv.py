"""An environment of OpenEnv with a planted fault."""

from __future__ import annotations

from typing import Any

from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State


class Dig(Action):
    """Dig."""


class Dug(Observation):
    text: str = ""


class Raising(Environment[Dig, Dug, State]):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> Dug:
        del seed, episode_id
        return Dug()

    def step(self, action: Dig, timeout_s: float | None = None, **_: Any) -> Dug:
        del action, timeout_s
        raise RuntimeError("thirteen")  # fault: openenv

    @property
    def state(self) -> State:
        return State()
