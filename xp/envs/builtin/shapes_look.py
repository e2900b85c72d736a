"""Boards of shapes as an ORS environment, with tools that turn the picture or cut a place out of it."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any, Final

from openreward.environments import (
    Environment,
    ImageBlock,
    JSONObject,
    Server,
    TextBlock,
    ToolOutput,
    tool,
)
from pydantic import BaseModel, Field

from xp.envs.builtin.shapes_mini import NUM_ROWS, SIDE, drawn, puzzle

TASKS_VERSION: Final = "1"
"""Version of the splits, the prompts and the tools. Raise it with any change of them, here or in shapes_mini.py."""


class Place(BaseModel):
    row: int = Field(ge=1, le=SIDE)
    column: int = Field(ge=1, le=SIDE)


class CountAnswer(BaseModel):
    number: int


class ShapesLook(Environment):  # type: ignore[misc]
    """One board. Looking gives no reward; an answer ends the episode, with 1 if it is right."""

    def __init__(self, task_spec: JSONObject = {}, secrets: dict[str, str] = {}) -> None:  # noqa: B006
        super().__init__(task_spec, secrets)
        board, self._colour, self._shape, self._count = puzzle(
            f"{task_spec['split']}/{task_spec['index']}"
        )
        self._board = list(board)

    @classmethod
    def list_splits(cls) -> Sequence[str]:
        return list(NUM_ROWS)

    @classmethod
    def list_tasks(cls, split: str) -> Sequence[JSONObject]:
        return [{"split": split, "index": index} for index in range(NUM_ROWS[split])]

    def get_prompt(self) -> Sequence[Any]:
        question = f"How many {self._colour} {self._shape}s? Look, then answer."
        return [_block(drawn(self._board)), TextBlock(text=question)]

    @tool  # type: ignore[untyped-decorator]
    async def turn(self) -> ToolOutput:
        """Turn the board a quarter to the right."""
        rows = [self._board[start : start + SIDE] for start in range(0, SIDE**2, SIDE)]
        self._board = [place for column in zip(*reversed(rows), strict=True) for place in column]
        return _seen(drawn(self._board))

    @tool  # type: ignore[untyped-decorator]
    async def crop(self, params: Place) -> ToolOutput:
        """Cut one place out of the board."""
        return _seen(drawn([self._board[(params.row - 1) * SIDE + params.column - 1]]))

    @tool  # type: ignore[untyped-decorator]
    async def answer(self, params: CountAnswer) -> ToolOutput:
        """Answer the question."""
        reward = float(params.number == self._count)
        return ToolOutput(blocks=[TextBlock(text="Thanks.")], reward=reward, finished=True)


def _block(picture: bytes) -> Any:
    return ImageBlock(data=base64.b64encode(picture).decode(), mimeType="image/png")


def _seen(picture: bytes) -> ToolOutput:
    return ToolOutput(blocks=[_block(picture)], reward=0.0, finished=False)


if __name__ == "__main__":
    Server([ShapesLook]).run(host="127.0.0.1", port=8000)
