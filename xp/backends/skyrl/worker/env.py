"""SkyRL-Gym's environment interface for an Episode; the reward is added later (generator.py)."""

from __future__ import annotations

from typing import Any

from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput

from xp.backends.skyrl.worker.running_episode import RunningEpisode
from xp.episode.tokens import ChatTokens

RUNNING = "xp_play"
CHAT = "xp_chat"
"""Keys of the extras that the generator adds to a row's extras."""


class XpEnv(BaseTextEnv):  # type: ignore[misc]
    """One episode; the Episode applies its own turn limit, not SkyRL's.

    Args:
        env_config: SkyRL-Gym's configuration, unused.
        extras: the row's columns, with RUNNING and CHAT.
    """

    def __init__(self, env_config: Any, extras: dict[str, Any]) -> None:
        super().__init__()
        self._running: RunningEpisode = extras[RUNNING]
        self._chat: ChatTokens = extras[CHAT]

    def step(self, action: str) -> BaseTextEnvStepOutput:
        """Runs a turn; never raises for the environment's faults, after which SkyRL would lose the whole batch."""
        reply = self._running.episode.step(action, is_cut=self._running.is_cut)
        is_done = reply.is_done or not self._running.hears(reply, self._chat)
        if is_done:
            messages = []
        else:
            messages = [dict(message) for message in reply.messages]
        return BaseTextEnvStepOutput(observations=messages, reward=0.0, done=is_done, metadata={})

    def close(self) -> None:
        self._running.episode.settle()

    @staticmethod
    def aggregate_metrics(metrics: list[dict[str, Any]]) -> dict[str, Any]:
        """Returns no metrics, since xp's are computed from the episodes' results."""
        del metrics
        return {}
