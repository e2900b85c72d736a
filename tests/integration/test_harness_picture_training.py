"""Trainings of a program whose requests have pictures: the pixels of the update are those of the engine."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.support.child import json_lines
from tests.support.harbor_tasks import write_task
from tests.support.harness_programs import PROGRAMS
from tests.support.tiny_vision import vision_model
from xp.__main__ import main

WIRES = ["chat", "responses", "anthropic"]
pytestmark = pytest.mark.integration


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("wire", WIRES)
def test_the_update_has_the_engines_pixels_of_a_programs_pictures(
    wire: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    tasks = tmp_path / "tasks"
    write_task(tasks / "a")
    pytest.importorskip("trl")
    model = vision_model("qwen2_vl", tmp_path / "model", spread=0.08)
    outputs = tmp_path / "outputs"
    words = (
        *("env=harness", f"env.target={tasks}", "env.sandbox=none", "env.held_out=null"),
        f"env.options.program={PROGRAMS}",
        f"env.options.command=python {{program}}/picture_agent.py {{prompt_file}} {wire}",
        *("hardware=cpu", "training.num_steps=2", "training.prompts_per_step=1"),
        *("training.group_size=4", "training.micro_batch_size=4", "training.learning_rate=1e-3"),
        *("training.max_tokens_per_turn=4", "training.max_response_tokens=60"),
        *("training.max_prompt_tokens=2000", "training.entropy_coef=0.01"),
        *("model=hf", f"model.path={model}", "model.dtype=float32", "model.images=true"),
    )
    assert main([*words, f"outputs={outputs}"]) == 0
    (run,) = (outputs / "runs").iterdir()
    lines = json_lines(run / "metrics.jsonl")
    steps = [line for line in lines if line["stage"] == "train"]
    assert len(steps) == 2
    for step in steps:
        assert step["episodes/void"] == 0.0
        assert step["pictures/read"] >= 1.0
        assert step["training/logprob_gap"] < 1e-5
