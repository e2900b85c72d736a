"""Numbers with their nouns."""

from __future__ import annotations

import pytest

from xp.__main__ import main
from xp.lib.text import counted


def test_one_thing_is_told_in_the_singular(capsys: pytest.CaptureFixture[str]) -> None:
    assert [counted(number, "task") for number in (0, 1, 1200)] == [
        "0 tasks",
        "1 task",
        "1,200 tasks",
    ]
    assert counted(2, "micro-batch", "micro-batches") == "2 micro-batches"
    sizes = ("num_steps=1", "prompts_per_step=1", "group_size=2", "micro_batch_size=2")
    assert main(["plan", *(f"training.{size}" for size in sizes)]) == 0
    said = capsys.readouterr().out
    assert "a step: 1 task x 2 episodes = 2 episodes, 1 optimizer update of 2" in said
    assert "the run: 1 step = 2 episodes, 1 update at" in said
