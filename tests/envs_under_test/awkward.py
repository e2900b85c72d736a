"""An ORS environment with everything that TRL's own integration (trl.experimental.openreward, 1.16.0) trips over."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Literal

from openreward.environments import TextBlock, ToolOutput, tool
from pydantic import BaseModel

from tests.envs_under_test.counter import Noted, said

MEETING = asyncio.Barrier(8)


class Move(BaseModel):
    direction: Literal["north", "south"]
    steps: list[int]
    quietly: bool = True


class Awkward(Noted):
    """Its task specs have no common shape, its tools take the names of a rollout's own attributes."""

    def __init__(self, task_spec: Any = {}, secrets: dict[str, str] = {}) -> None:  # noqa: B006
        super().__init__(task_spec, secrets)
        self.note("init")

    def teardown(self) -> None:
        self.note("teardown")

    @classmethod
    def list_splits(cls) -> Sequence[str]:
        return ["train", "test"]

    @classmethod
    def list_tasks(cls, split: str) -> Sequence[dict[str, Any]]:
        mixed: list[Any] = [1, "two", [3], None, {"image": "four"}, True, 7.0, "eight"]
        return [{"task_spec": value, "prompt": value, "image": value, "split": split} for value in mixed]

    def get_prompt(self) -> list[TextBlock]:
        return [TextBlock(text=f"a task of {self.task_spec['split']}")]

    @tool
    def move(self, args: Move) -> ToolOutput:
        """Go."""
        return said(f"{args.direction} {sum(args.steps)} {args.quietly}", 0.1)

    @tool
    def reset(self) -> ToolOutput:
        """Begin anew."""
        return said("as it was", 0.2)

    @tool
    def reward(self) -> ToolOutput:
        """Ask for a reward."""
        return said("here", 0.3)

    @tool
    async def meet(self) -> ToolOutput:
        """Wait until eight sessions of this server's process do."""
        async with asyncio.timeout(240):
            await MEETING.wait()
        return said("met", 1.0)

    @tool
    def leave(self) -> ToolOutput:
        """End it."""
        return said("gone", 1.0, finished=True)


class Other(Awkward):
    """Elsewhere."""

    def get_prompt(self) -> list[TextBlock]:
        return [TextBlock(text="another environment")]
