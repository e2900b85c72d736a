"""A look-alike of GeneralReasoning/WhoDunit: one split of 100 mysteries, six lists without arguments, one answer."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Final

from openreward.environments import Environment, JSONObject, TextBlock, ToolOutput, tool
from pydantic import BaseModel, ConfigDict

TASKS_VERSION = "1"

NUM_TASKS: Final = 100
NUM_ELEMENTARY: Final = 75
NUM_WITH_MOTIVE: Final = 10
"""The last ones, all of them impossible."""
NAMES: Final = {
    "suspect": ("Rose", "Victor", "Clara", "Hugo", "Agnes", "Edgar"),
    "weapon": ("rope", "dagger", "pistol", "candlestick", "wrench", "poker"),
    "location": ("library", "cellar", "attic", "kitchen", "study", "garden"),
    "motive": ("greed", "envy", "revenge", "fear"),
}


class Case(BaseModel):
    """A task: who did it, with what, where, and, in some, why; `others` are the innocent possibilities."""

    number: int
    kind: str
    solution: dict[str, str]
    others: dict[str, list[str]]


def _without_titles(schema: dict[str, Any]) -> None:
    """pydantic's titles repeat the names: the embedded model reads a thousand tokens at most."""
    schema.pop("title", None)
    for argument in schema["properties"].values():
        argument.pop("title", None)


class Answer(BaseModel):
    model_config = ConfigDict(json_schema_extra=_without_titles)

    suspect: str
    weapon: str
    location: str
    motive: str = ""


def make_case(number: int) -> Case:
    rng = random.Random(f"whodunit:{number}")
    parts = list(NAMES) if number >= NUM_TASKS - NUM_WITH_MOTIVE else list(NAMES)[:3]
    drawn = {part: rng.sample(NAMES[part], 3) for part in parts}
    kind = "elementary" if number < NUM_ELEMENTARY else "impossible"
    solution = {part: names[0] for part, names in drawn.items()}
    return Case(
        number=number,
        kind=kind,
        solution=solution,
        others={part: names[1:] for part, names in drawn.items()},
    )


class WhoDunit(Environment):  # type: ignore[misc]
    """One mystery; submitting ends it, with an equal share for each right component."""

    def __init__(self, task_spec: JSONObject = {}, secrets: dict[str, str] = {}) -> None:  # noqa: B006
        super().__init__(task_spec, secrets)
        self._case = Case.model_validate(task_spec)

    @classmethod
    def list_splits(cls) -> Sequence[str]:
        return ["train"]

    @classmethod
    def list_tasks(cls, split: str) -> Sequence[JSONObject]:
        del split
        return [make_case(number).model_dump() for number in range(NUM_TASKS)]

    def get_prompt(self) -> Sequence[TextBlock]:
        asked = " ".join(self._case.solution)
        return [TextBlock(text=f"Case {self._case.number}. Name the {asked}.")]

    @tool  # type: ignore[untyped-decorator]
    async def list_suspects(self) -> ToolOutput:
        """Suspects."""
        return self._listed("suspect")

    @tool  # type: ignore[untyped-decorator]
    async def list_weapons(self) -> ToolOutput:
        """Weapons."""
        return self._listed("weapon")

    @tool  # type: ignore[untyped-decorator]
    async def list_locations(self) -> ToolOutput:
        """Locations."""
        return self._listed("location")

    @tool  # type: ignore[untyped-decorator]
    async def list_motives(self) -> ToolOutput:
        """Motives."""
        return self._listed("motive")

    @tool  # type: ignore[untyped-decorator]
    async def list_clues(self) -> ToolOutput:
        """Clues."""
        return _said("; ".join(f"not the {names[0]}" for names in self._case.others.values()))

    @tool  # type: ignore[untyped-decorator]
    async def list_statements(self) -> ToolOutput:
        """Statements."""
        return _said("; ".join(f"never the {names[1]}" for names in self._case.others.values()))

    @tool  # type: ignore[untyped-decorator]
    async def submit_answer(self, params: Answer) -> ToolOutput:
        """Submit, once."""
        given = params.model_dump()
        right = [
            given[part].strip().lower() == name.lower()
            for part, name in self._case.solution.items()
        ]
        reward = sum(right) / len(right)
        blocks = [TextBlock(text=f"{sum(right)} of {len(right)} right")]
        return ToolOutput(blocks=blocks, reward=reward, finished=True)

    def _listed(self, part: str) -> ToolOutput:
        names = [self._case.solution.get(part, ""), *self._case.others.get(part, [])]
        return _said(", ".join(sorted(filter(None, names))) or "none")


def _said(text: str) -> ToolOutput:
    return ToolOutput(blocks=[TextBlock(text=text)], reward=0.0, finished=False)
