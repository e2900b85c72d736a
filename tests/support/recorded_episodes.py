"""A written record of an episode."""

from __future__ import annotations

from tests.support.fake_session import RULES, TASK, FakeSession, call, steady
from xp.episode.episode import Episode
from xp.episode.trajectory import (
    Tokens,
    Trajectory,
    trajectory,
)


def a_record(step: int = 3, text: str = "I move.", tools: str = "[]") -> Trajectory:
    episode = Episode(TASK, lambda: FakeSession(steady), RULES)
    episode.step(text + call("move", to="ö"))
    episode.step("<tool_call>{</tool_call>")
    episode.step(call("win") + call("look"))
    episode.settle()
    tokens = Tokens(9, 8, 7)
    return trajectory(
        episode, run="r1", phase="train", step=step, sample=1, tools=tools, tokens=tokens
    )
