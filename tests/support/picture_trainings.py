"""Overrides of small trainings with pictures, their metrics, and what their episodes read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

SMALL = (
    "hardware=cpu",
    "training.num_steps=2",
    "training.prompts_per_step=3",
    "training.group_size=4",
    "training.micro_batch_size=4",
    "training.learning_rate=1e-3",
    "training.max_tokens_per_turn=4",
    "training.max_response_tokens=60",
    "training.checkpoint_every=1",
)
TWO_TURNS = (
    "env=graded",
    "env.grader=tests.graders_under_test.showing:TwoBoards",
    "env.held_out.split=test",
    "env.max_turns=2",
)


def steps_of(outputs: Path, stage: str = "train") -> list[dict[str, Any]]:
    (run,) = (outputs / "runs").iterdir()
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["stage"] == stage]


def played(run: Path) -> dict[tuple[int, str, int], Any]:
    """The messages of each training episode, pictures included, in the last attempt that played it."""
    episodes = {}
    for file in sorted(run.glob("attempt_*/train/trajectories/train.jsonl")):
        for text in file.read_text().splitlines():
            record = json.loads(text)
            episodes[record["step"], record["index"], record["sample"]] = record["messages"]
    return episodes
