"""The bundled mysteries as an ORS environment, served by the openreward SDK's own server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from openreward.environments import Environment, JSONObject, Server, TextBlock, ToolOutput, tool
from pydantic import BaseModel, ConfigDict, Field

from xp.envs.builtin.mystery import Game, generate_case

TASKS_VERSION: Final = "1"
"""Version of the splits, the prompts and the tools. Raise it with any change of them, here or in mystery.py."""
NUM_TASKS: Final = {"train": 20_000, "test": 2_000}


def _without_titles(schema: dict[str, Any]) -> None:
    """pydantic's titles repeat the names: tokens that a small model would have to read in every prompt."""
    schema.pop("title", None)
    for argument in schema.get("properties", {}).values():
        argument.pop("title", None)


class Arguments(BaseModel):
    """Arguments of a tool."""

    model_config = ConfigDict(json_schema_extra=_without_titles)


class TaskSpec(BaseModel):
    """Identifies a mystery; the case itself never leaves the server."""

    model_config = ConfigDict(extra="forbid")

    split: str
    index: int = Field(ge=0)


class Interview(Arguments):
    suspect: str


class Search(Arguments):
    room: str


class Accusation(Arguments):
    suspect: str
    weapon: str
    room: str


class WhodunitMini(Environment):  # type: ignore[misc]
    """One mystery. Investigating gives reward 0; an accusation ends the episode and gives its score."""

    def __init__(self, task_spec: JSONObject = {}, secrets: dict[str, str] = {}) -> None:  # noqa: B006
        super().__init__(task_spec, secrets)
        spec = TaskSpec.model_validate(task_spec)
        self._game = Game(generate_case(spec.split, spec.index))

    @classmethod
    def list_splits(cls) -> Sequence[str]:
        return list(NUM_TASKS)

    @classmethod
    def list_tasks(cls, split: str) -> Sequence[JSONObject]:
        return [{"split": split, "index": index} for index in range(NUM_TASKS[split])]

    def get_prompt(self) -> Sequence[TextBlock]:
        return [TextBlock(text=self._game.case.prompt)]

    @tool  # type: ignore[untyped-decorator]
    async def interview(self, params: Interview) -> ToolOutput:
        """Ask for an alibi."""
        return self._output(self._game.interview(params.suspect))

    @tool  # type: ignore[untyped-decorator]
    async def search(self, params: Search) -> ToolOutput:
        """Look for a weapon."""
        return self._output(self._game.search(params.room))

    @tool  # type: ignore[untyped-decorator]
    async def accuse(self, params: Accusation) -> ToolOutput:
        """End the case."""
        return self._output(self._game.accuse(params.suspect, params.weapon, params.room))

    @staticmethod
    def solve(messages: Sequence[dict[str, Any]], task: JSONObject) -> tuple[str, dict[str, str]]:
        """The next call of a detective who asks until nothing is open (sft.data=solve)."""
        case = generate_case(str(task["split"]), int(str(task["index"])))
        num_turns = sum(message["role"] == "assistant" for message in messages)
        call: tuple[str, dict[str, str]] = case.solution()[num_turns]
        return call

    def _output(self, text: str) -> ToolOutput:
        return ToolOutput(
            blocks=[TextBlock(text=text)], reward=self._game.reward, finished=self._game.is_over
        )


if __name__ == "__main__":
    Server([WhodunitMini]).run(host="127.0.0.1", port=8000)
