"""The line of a fault has the class of the exception, and the tool or function that raised it."""

from __future__ import annotations

from pathlib import Path

import pytest

from xp.__main__ import main

TOOL = '''
from openreward.environments import Environment, Split, TextBlock, ToolOutput, tool
from pydantic import BaseModel


class Place(BaseModel):
    name: str


class Crashing(Environment):
    @classmethod
    def list_splits(cls):
        return [Split(name="train", type="train")]

    @classmethod
    def list_tasks(cls, split):
        return [{"id": str(number)} for number in range(4)]

    def get_prompt(self):
        return [TextBlock(text=str(self.task_spec))]

    @tool
    async def go(self, place: Place) -> ToolOutput:
        """Goes to a place."""
        raise KeyError("no such place")
'''
GRADER = """
def grade(answer, row):
    raise KeyError("no such answer")
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name, code in {"tool": TOOL, "grader": GRADER}.items():
        (tmp_path / f"{name}_of_faults.py").write_text(code)
    (tmp_path / "rows.jsonl").write_text('{"question": "1 + 1", "answer": "2"}\n' * 3)
    return tmp_path


GRADED = ("env=graded", "env.rows=rows.jsonl", "env.columns={prompt: question, answer: answer}")


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        pytest.param(
            ["tool_of_faults:Crashing"],
            ("tool go", "KeyError: 'no such place'"),
            marks=pytest.mark.slow,
        ),
        (
            [*GRADED, "env.grader=grader_of_faults:grade"],
            ("the grader grader_of_faults:grade", "KeyError: 'no such answer'"),
        ),
    ],
    ids=["tool", "grader"],
)
def test_a_void_episode_has_the_class_and_the_function(
    words: list[str], parts: tuple[str, ...], capfd: pytest.CaptureFixture[str]
) -> None:
    main(["env", "check", *words, "tasks=2"])
    output = capfd.readouterr()
    lines = [line for line in (output.out + output.err).splitlines() if " void: " in line]
    assert lines
    assert [part for part in parts if part not in lines[0]] == []
