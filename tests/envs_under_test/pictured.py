"""ORS environments that show images: in the task's prompt, or as the result of a tool."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from openreward.environments import Environment, ImageBlock, TextBlock, ToolOutput, tool

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


class Gallery(Environment):
    """Shows an image when it is asked to look."""

    @classmethod
    def list_splits(cls) -> Sequence[str]:
        return ["train", "test"]

    @classmethod
    def list_tasks(cls, split: str) -> Sequence[dict[str, Any]]:
        return [{"number": number, "split": split} for number in range(4)]

    def get_prompt(self) -> list[Any]:
        return [TextBlock(text="What is in the picture?")]

    @tool
    def look(self) -> ToolOutput:
        """Look at the picture."""
        blocks = [TextBlock(text="Here it is."), ImageBlock(data=PIXEL, mimeType="image/png")]
        return ToolOutput(blocks=blocks, reward=0.0, finished=False)

    @tool
    def answer(self) -> ToolOutput:
        """Answer."""
        return ToolOutput(blocks=[TextBlock(text="right")], reward=1.0, finished=True)


class Painted(Gallery):
    """Shows the image at once."""

    def get_prompt(self) -> list[Any]:
        return [TextBlock(text="What is this?"), ImageBlock(data=PIXEL, mimeType="image/png")]
