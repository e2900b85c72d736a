"""Environments of ORS with one planted fault each: a table of how an environment fails."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

from openreward.environments import Environment, TextBlock, ToolOutput, tool

MAP: dict[str, int] = {}


def dug() -> ToolOutput:
    return ToolOutput(blocks=[TextBlock(text="dug")], reward=1.0, finished=True)


def map_of(place: str) -> int:
    return MAP[place]


class Faulty(Environment):
    """Its only tool fails as the task says."""

    @classmethod
    def list_splits(cls) -> Sequence[str]:
        return ["train"]

    @classmethod
    def list_tasks(cls, split: str) -> Sequence[dict[str, Any]]:
        return [{"split": split}]

    def get_prompt(self) -> list[TextBlock]:
        return [TextBlock(text="Dig.")]


class Raising(Faulty):
    @tool
    def dig(self) -> ToolOutput:
        """Dig."""
        map_of(os.environ["XP_DIGGER_TOKEN"])  # fault: raise
        return dug()


class Hanging(Faulty):
    @tool
    def dig(self) -> ToolOutput:
        """Dig."""
        while True:
            time.sleep(0.1)  # fault: hang


class Blocking(Faulty):
    @tool
    async def dig(self) -> ToolOutput:
        """Dig, and let the server do nothing else."""
        while True:
            time.sleep(0.1)  # fault: block


class Dying(Faulty):
    @tool  # fault: die
    def dig(self) -> ToolOutput:
        """Dig."""
        os._exit(3)


class Slow(Faulty):
    @tool  # fault: slow
    def dig(self) -> ToolOutput:
        """Dig."""
        time.sleep(0.7)
        return dug()


class Starting(Faulty):
    def setup(self) -> None:
        raise RuntimeError("no shovel")  # fault: setup

    @tool
    def dig(self) -> ToolOutput:
        """Dig."""
        return dug()
