"""DAPO's published files repeat each problem; a task set has it once, with the answer for the grader alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from xp.envs.builtin import dapo_math


def row(text: str, answer: str, number: int) -> dict[str, Any]:
    prompt = [{"role": "user", "content": text}]
    return {
        "prompt": prompt,
        "reward_model": {"ground_truth": answer},
        "extra_info": {"index": str(number)},
    }


def test_each_problem_is_there_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("datasets")
    published = {
        "TRAIN": [("1+1", "2"), ("2+2", "4"), ("1+1", "2")],
        "TEST": [("3+3", "6")] * 32,
    }
    for name, problems in published.items():
        rows = [row(*problem, number) for number, problem in enumerate(problems)]
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
        monkeypatch.setattr(dapo_math, name, str(tmp_path / name))
    sets = dapo_math.hub()
    assert [one["answer"] for one in sets["train"]] == ["2", "4"]
    assert [one["prompt"][0]["content"] for one in sets["test"]] == ["3+3"]
    assert set(sets["test"][0]) == {"prompt", "answer"}
