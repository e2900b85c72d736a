"""Rows and graders whose prompts do not depend on their task alone, without the SDK: its import takes five seconds."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any


def rows() -> Mapping[str, Sequence[Mapping[str, Any]]]:
    return {
        split: [{"prompt": f"Count to {n} of {split}."} for n in range(9)]
        for split in ("train", "test")
    }


class Dealt:
    """A grader in the manner of SkyRL-Gym's BaseTextEnv, whose first message is drawn."""

    def __init__(self, env_config: Mapping[str, Any], extras: Mapping[str, Any]) -> None:
        del env_config, extras
        self.number = str(random.SystemRandom().getrandbits(64))

    def init(self, prompt: list[dict[str, str]]) -> tuple[list[dict[str, str]], dict[str, Any]]:
        return [*prompt, {"role": "user", "content": f"Say {self.number}."}], {}

    def step(self, action: str) -> dict[str, Any]:
        return {
            "observations": [],
            "reward": float(self.number in action),
            "done": True,
            "metadata": {},
        }
