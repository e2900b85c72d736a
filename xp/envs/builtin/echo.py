"""The echo environment of TRL's documentation, the smallest there is: say the word and win."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from openreward.environments import Environment, JSONObject, Server, TextBlock, ToolOutput, tool
from pydantic import BaseModel

TASKS_VERSION: Final = "1"
WORDS: Final = {"train": ("hello", "world")}


class EchoTask(BaseModel):
    """The text that the policy must say."""

    target: str


class Text(BaseModel):
    text: str


class Echo(Environment):  # type: ignore[misc]
    """One tool; the right word gives reward 1 and ends the episode."""

    def __init__(self, task_spec: JSONObject = {}, secrets: dict[str, str] = {}) -> None:  # noqa: B006
        super().__init__(task_spec, secrets)
        self._target = EchoTask.model_validate(task_spec).target

    @classmethod
    def list_splits(cls) -> Sequence[str]:
        return list(WORDS)

    @classmethod
    def list_tasks(cls, split: str) -> Sequence[JSONObject]:
        return [{"target": word} for word in WORDS[split]]

    def get_prompt(self) -> Sequence[TextBlock]:
        return [TextBlock(text=f"Echo '{self._target}' to win.")]

    @tool  # type: ignore[untyped-decorator]
    async def echo(self, params: Text) -> ToolOutput:
        """Say a word.

        Args:
            text: the word.
        """
        is_right = params.text == self._target
        reply = TextBlock(text="match" if is_right else "no match")
        return ToolOutput(blocks=[reply], reward=float(is_right), finished=is_right)


if __name__ == "__main__":
    Server([Echo]).run(host="127.0.0.1", port=8000)
