"""Look-alikes of the catalog's environments of one answer: GSM8K and GSM1K, and a split too large to list."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from openreward.environments import Environment, JSONObject, TextBlock, ToolOutput, tool
from pydantic import BaseModel

TASKS_VERSION = "1"


class Answer(BaseModel):
    answer: str


class _Sums(Environment):  # type: ignore[misc]
    """Sums; a subclass says how many, and how the tool is called. The first answer ends the episode."""

    sizes: ClassVar[Mapping[str, int]]

    def __init__(self, task_spec: JSONObject = {}, secrets: dict[str, str] = {}) -> None:  # noqa: B006
        super().__init__(task_spec, secrets)
        self._a = task_spec["a"]
        self._b = task_spec["b"]

    @classmethod
    def list_splits(cls) -> Sequence[str]:
        return list(cls.sizes)

    @classmethod
    def list_tasks(cls, split: str) -> Sequence[JSONObject]:
        return [_sum(split, index) for index in range(cls.sizes[split])]

    def get_prompt(self) -> Sequence[TextBlock]:
        return [TextBlock(text=f"{self._a} + {self._b} = ?")]

    def graded(self, answer: str) -> ToolOutput:
        is_right = answer.strip() == str(self._a + self._b)
        return ToolOutput(
            blocks=[TextBlock(text="noted")],
            reward=float(is_right),
            finished=True,
        )


class GSM8K(_Sums):
    sizes: ClassVar[Mapping[str, int]] = {"train": 7473, "test": 1319}

    @tool  # type: ignore[untyped-decorator]
    async def answer(self, params: Answer) -> ToolOutput:
        """Answer."""
        return self.graded(params.answer)


class GSM1K(_Sums):
    sizes: ClassVar[Mapping[str, int]] = {"test": 1205}

    @tool  # type: ignore[untyped-decorator]
    async def submit_answer(self, params: Answer) -> ToolOutput:
        """Answer."""
        return self.graded(params.answer)


class Unsplit(_Sums):
    """One split that is too large to list: the server counts its tasks, and gives each by its index."""

    sizes: ClassVar[Mapping[str, int]] = {"train": 228_736}

    @classmethod
    def list_tasks(cls, split: str) -> Sequence[JSONObject]:
        raise NotImplementedError

    @classmethod
    async def num_tasks(cls, split: str) -> int:
        return cls.sizes[split]

    @classmethod
    async def get_task(cls, split: str, index: int) -> JSONObject:
        return _sum(split, index)

    @tool  # type: ignore[untyped-decorator]
    async def answer(self, params: Answer) -> ToolOutput:
        """Answer."""
        return self.graded(params.answer)


def _sum(split: str, index: int) -> JSONObject:
    return {"split": split, "a": index, "b": len(split)}  # No split has a prompt of another one.
