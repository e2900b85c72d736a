"""Environments whose prompts do not depend on their task alone: by chance, or by the process."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from openreward.environments import Environment, TextBlock, ToolOutput, tool
from pydantic import BaseModel

SIZES = {"train": 24, "test": 8}


class Answer(BaseModel):
    answer: str


class Drawn(Environment):
    """Each session draws the factors of its product, and grades its own."""

    def __init__(self, task_spec: Any = {}, secrets: dict[str, str] = {}) -> None:  # noqa: B006
        super().__init__(task_spec, secrets)
        chance = random.SystemRandom()
        self.factors = chance.randint(10**6, 10**9), chance.randint(2, 9)

    @classmethod
    def list_splits(cls) -> Sequence[str]:
        return list(SIZES)

    @classmethod
    def list_tasks(cls, split: str) -> Sequence[dict[str, Any]]:
        return [{"number": number, "split": split} for number in range(SIZES[split])]

    def get_prompt(self) -> list[TextBlock]:
        return [TextBlock(text=f"Multiply {self.factors[0]} by {self.factors[1]}.")]

    @tool
    def submit(self, params: Answer) -> ToolOutput:
        """Hand in the product."""
        is_right = params.answer == str(self.factors[0] * self.factors[1])
        return ToolOutput(
            blocks=[TextBlock(text="done")],
            reward=float(is_right),
            finished=True,
        )


OPTIONS = random.SystemRandom().sample(range(40), 40)


class Shuffled(Drawn):
    """The options are in an order that each process draws when it imports this module."""

    def get_prompt(self) -> list[TextBlock]:
        return [TextBlock(text=f"Which is the largest? {OPTIONS}")]
