"""An environment on the other SDK of the Open Reward Standard, the package ors-sdk."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ors import Environment, Split, TextBlock, ToolOutput, tool
from pydantic import BaseModel


class Amount(BaseModel):
    amount: int


class Counter(Environment):
    """Count to the task's goal."""

    def __init__(self, task_spec: Any = {}, secrets: dict[str, str] = {}) -> None:  # noqa: B006
        super().__init__(task_spec, secrets)
        self.count = 0

    @classmethod
    def list_splits(cls) -> Sequence[Split]:
        return [Split(name="train", type="train"), Split(name="test", type="test")]

    @classmethod
    def list_tasks(cls, split: str) -> Sequence[dict[str, Any]]:
        return [{"goal": goal, "split": split} for goal in range(1, 9)]

    def get_prompt(self) -> list[TextBlock]:
        return [TextBlock(text=f"Count to {self.task_spec['goal']}.")]

    @tool
    def add(self, params: Amount) -> ToolOutput:
        """Add an amount."""
        self.count += params.amount
        is_there = self.count == self.task_spec["goal"]
        return ToolOutput(
            blocks=[TextBlock(text=str(self.count))], reward=float(is_there), finished=is_there
        )
