"""Reward for models with random weights, whose episodes all have the same reward otherwise."""

from __future__ import annotations

from xp.envs.base import Message


def length(messages: list[Message]) -> float:
    """Characters that the model wrote, in thousands."""
    return (
        sum(len(str(message["content"])) for message in messages if message["role"] == "assistant")
        / 1000
    )
