"""ORS environments, of both SDKs, whose reward is what the call says: `nan`, `inf`, a number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ors
from openreward.environments import Environment, Server, TextBlock, ToolOutput, tool
from pydantic import BaseModel


class Payment(BaseModel):
    reward: str


class Payer(Environment):
    @classmethod
    def list_splits(cls) -> Sequence[str]:
        return ["train"]

    @classmethod
    def list_tasks(cls, split: str) -> Sequence[dict[str, Any]]:
        del split
        return [{"id": 0}]

    def get_prompt(self) -> list[TextBlock]:
        return [TextBlock(text="Pay.")]

    @tool
    def pay(self, params: Payment) -> ToolOutput:
        """Pay."""
        metadata = {"loss": float("nan"), "reward": float("inf")}
        made = ToolOutput(blocks=[TextBlock(text="paid")], metadata=metadata, finished=True)
        made.reward = float(params.reward)  # pydantic does not look at it here
        return made


class OtherPayer(ors.Environment):
    @classmethod
    def list_splits(cls) -> Sequence[ors.Split]:
        return [ors.Split(name="train", type="train")]

    @classmethod
    def list_tasks(cls, split: str) -> Sequence[dict[str, Any]]:
        del split
        return [{"id": 0}]

    def get_prompt(self) -> list[ors.TextBlock]:
        return [ors.TextBlock(text="Pay.")]

    @ors.tool
    def pay(self, params: Payment) -> ors.ToolOutput:
        """Pay."""
        return ors.ToolOutput(
            blocks=[ors.TextBlock(text="paid")], reward=float(params.reward), finished=True
        )


app = Server([Payer]).app
"""An author's own app."""
