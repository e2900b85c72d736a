"""Look-alikes of the catalog's environments of one answer: GSM8K, GSM1K, Open-RL, GeneralReasoner; and TRL's Echo."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from openreward.environments import Environment, JSONObject, TextBlock, ToolOutput, tool
from pydantic import BaseModel

TASKS_VERSION = "1"


class Answer(BaseModel):
    answer: str


class Text(BaseModel):
    text: str


class _Sums(Environment):  # type: ignore[misc]
    """Sums; a subclass says how many, and how the tool is called. The first answer ends the episode."""

    sizes: ClassVar[Mapping[str, int]]
    secret: ClassVar[str | None] = None

    def __init__(self, task_spec: JSONObject = {}, secrets: dict[str, str] = {}) -> None:  # noqa: B006
        super().__init__(task_spec, secrets)
        if self.secret is not None and not secrets.get(self.secret):
            raise ValueError(f"the session has no secret {self.secret}")
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


class _OnlyCounted(_Sums):
    """Tasks that are too many to list: the server counts them, and gives each by its index."""

    @classmethod
    def list_tasks(cls, split: str) -> Sequence[JSONObject]:
        raise NotImplementedError

    @classmethod
    async def num_tasks(cls, split: str) -> int:
        return cls.sizes[split]

    @classmethod
    async def get_task(cls, split: str, index: int) -> JSONObject:
        return _sum(split, index)


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


class OpenRL(_Sums):
    sizes: ClassVar[Mapping[str, int]] = {"train": 40}
    secret: ClassVar[str | None] = "openai_api_key"

    @tool  # type: ignore[untyped-decorator]
    async def answer(self, params: Answer) -> ToolOutput:
        """Answer."""
        return self.graded(params.answer)


class GeneralReasoner(_OnlyCounted):
    sizes: ClassVar[Mapping[str, int]] = {"train": 228_736, "test": 1000}
    secret: ClassVar[str | None] = "openai_api_key"

    @tool  # type: ignore[untyped-decorator]
    async def answer(self, params: Answer) -> ToolOutput:
        """Answer."""
        return self.graded(params.answer)


class Unsplit(_OnlyCounted):
    """One split as large as GeneralReasoner's. No catalog page shows this pair; one split is what five of nine have."""

    sizes: ClassVar[Mapping[str, int]] = {"train": 228_736}

    @tool  # type: ignore[untyped-decorator]
    async def answer(self, params: Answer) -> ToolOutput:
        """Answer."""
        return self.graded(params.answer)


def _sum(split: str, index: int) -> JSONObject:
    return {"split": split, "a": index, "b": len(split)}  # No split has a prompt of another one.
