"""The line of a fault has the class of the exception, and the function that raised it."""

from __future__ import annotations

from pathlib import Path

import pytest

from xp.__main__ import main

GRADER = """
def grade(answer, row):
    raise KeyError("no such answer")
"""


GRADED = (
    "env=graded",
    "env.rows=rows.jsonl",
    "env.columns={prompt: question, answer: answer}",
    "env.grader=grader_of_faults:grade",
)


def test_a_void_episode_has_the_class_and_the_function(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "grader_of_faults.py").write_text(GRADER)
    (tmp_path / "rows.jsonl").write_text('{"question": "1 + 1", "answer": "2"}\n' * 3)
    main(["env", "check", *GRADED, "tasks=2"])
    output = capfd.readouterr()
    lines = [line for line in (output.out + output.err).splitlines() if " void: " in line]
    for part in ("the grader grader_of_faults:grade", "KeyError: 'no such answer'"):
        assert part in lines[0]
