"""An echo environment on OpenEnv's own server API: say the word that the task asks for.

Without a target it scores as the published one does: a tenth for each character.
"""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State
from pydantic import Field

PER_CHARACTER = 0.1


class EchoAction(Action):  # type: ignore[misc]
    """Say something."""

    message: str = Field(description="What to say.")


class EchoObservation(Observation):  # type: ignore[misc]
    """The text of the last message."""

    echoed_message: str = ""


class OpenEnvEcho(Environment[EchoAction, EchoObservation, State]):  # type: ignore[misc]
    """One session: 1 and the end for the target, 0 for anything else; without a target it never ends."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self.reset()

    def reset(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        target: str | None = None,
        **_: Any,
    ) -> EchoObservation:
        self._target = target
        self._state = State(episode_id=episode_id or str(uuid4()), step_count=0)
        return EchoObservation(echoed_message="ready")

    def step(self, action: EchoAction, timeout_s: float | None = None, **_: Any) -> EchoObservation:
        self._state.step_count += 1
        if self._target is None:
            return EchoObservation(
                echoed_message=action.message, reward=PER_CHARACTER * len(action.message)
            )
        is_right = action.message.strip() == self._target
        return EchoObservation(echoed_message=action.message, reward=float(is_right), done=is_right)

    @property
    def state(self) -> State:
        return self._state
