"""What holds of every environment of a package: the check finds no fault, and two steps on TRL have no void episode."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from xp.__main__ import main

FEW = (
    *(
        "training.num_steps=2",
        "training.prompts_per_step=2",
        "training.group_size=4",
        "training.micro_batch_size=8",
    ),
    *("training.max_response_tokens=24", "evaluation.batch_size=8"),
    # The tiny model solves no task of a package, and equal rewards train nothing.
    "env.reward_fn=tools.gpu.reward:length",
)


def check_finds_no_fault(words: Sequence[str], capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["env", "check", *words])
    shown = capsys.readouterr().out
    assert code == 0, shown
    assert "fault" not in shown


def two_steps_are_played(words: Sequence[str], outputs: Path) -> None:
    assert main([*words, *FEW]) == 0
    (run,) = (outputs / "runs").iterdir()
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if line["stage"] == "train"]
    assert [line["episodes/num"] for line in steps] == [8.0, 8.0]
    assert all(line.get("episodes/void", 0.0) == 0.0 for line in steps)
    assert json.loads((run / "attempt_1/evaluate/after/eval.json").read_text())
