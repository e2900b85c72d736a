"""An ORS environment with what TRL's own integration (trl.experimental.openreward, 1.16.0) trips over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from openreward.environments import TextBlock, ToolOutput, tool
from pydantic import BaseModel

from tests.envs_under_test.counter import Noted, said

TASKS_VERSION = "1"


class Move(BaseModel):
    direction: Literal["north", "south"]
    steps: list[int]
    quietly: bool = True


class Awkward(Noted):
    """Its task specs have no common shape."""

    @classmethod
    def list_splits(cls) -> Sequence[str]:
        return ["train", "test"]

    @classmethod
    def list_tasks(cls, split: str) -> Sequence[dict[str, Any]]:
        mixed: list[Any] = [
            1,
            "two",
            [3],
            None,
            {"image": "four"},
            True,
            7.0,
            "eight",
        ]
        return [
            {"task_spec": value, "prompt": value, "image": value, "split": split} for value in mixed
        ]

    def get_prompt(self) -> list[TextBlock]:
        return [TextBlock(text=f"a task of {self.task_spec['split']}")]

    @tool
    def move(self, args: Move) -> ToolOutput:
        """Go."""
        return said(f"{args.direction} {sum(args.steps)} {args.quietly}", 0.1)


class Other(Awkward):
    """Elsewhere."""

    def get_prompt(self) -> list[TextBlock]:
        return [TextBlock(text="another environment")]
