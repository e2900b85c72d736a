"""`provider: sample`: sums of numbers up to `options.largest`; needs no server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, Field

from xp.envs.base import Message, ProtocolError, SessionLost, Task, ToolResult, ToolSpec
from xp.envs.config import EnvConfig

SUBMIT = ToolSpec(
    "submit", "Hand in the sum.", {"type": "object", "properties": {"total": {"type": "integer"}}}
)
SIZE = 6


class SumsProvider:
    class Options(BaseModel):
        largest: int = Field(default=9, ge=1)

    def __init__(self, config: EnvConfig, environ: Mapping[str, str]) -> None:
        del environ
        self._name = config.name
        self._largest = config.options["largest"]
        self._is_open = True

    def version(self) -> str:
        return "1"

    def splits(self) -> tuple[str, ...]:
        return ("train",)

    def num_tasks(self, split: str) -> int:
        if split != "train":
            raise ProtocolError(f"no split {split}")
        return SIZE

    def tasks(self, split: str, indices: Sequence[int]) -> list[Task]:
        if any(not 0 <= index < self.num_tasks(split) for index in indices):
            raise ValueError("no such task")
        return [Task(self._name, split, index) for index in indices]

    def open(self, task: Task) -> SumsSession:
        if not self._is_open:
            raise SessionLost("closed")
        if not 0 <= task.index < self.num_tasks(task.split):
            raise ProtocolError("no such task")
        return SumsSession(task.index, self._largest)

    def close(self) -> None:
        self._is_open = False


class SumsSession:
    takes_answer = False

    def __init__(self, index: int, largest: int) -> None:
        self._terms = (index, largest)
        self._is_open = True

    def prompt(self) -> list[Message]:
        return [Message(role="user", content=f"What is {self._terms[0]} + {self._terms[1]}?")]

    def tools(self) -> tuple[ToolSpec, ...]:
        return (SUBMIT,)

    def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        if not self._is_open:
            raise SessionLost("closed")
        if name != SUBMIT.name or not isinstance(arguments.get("total"), int):
            return ToolResult("submit takes a total", is_call_error=True)
        return ToolResult(
            "handed in", reward=float(arguments["total"] == sum(self._terms)), finished=True
        )

    def answer(self, text: str) -> ToolResult:
        del text
        raise ProtocolError("a sum is handed in by the tool")

    def close(self) -> None:
        self._is_open = False
