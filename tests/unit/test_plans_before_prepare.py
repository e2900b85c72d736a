"""Plans are the same before and after `prepare`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tests.support.task_set import write_manifest
from xp.__main__ import main
from xp.composition import compose, options
from xp.errors import ExitCode
from xp.execution.reuse import _content
from xp.planning.job import Stage
from xp.planning.plan import build_plan
from xp.planning.stages import task_set_place

EMBEDDED = ("quickstart", "multiply-trl")
"""Recipes of environments of xp's own."""
EPOCHS = ["training.num_steps=null", "training.epochs=2"]


def stages(words: list[str]) -> dict[str, Any]:
    """The stages of a new plan, and their contents by which a resume recognises them."""
    planned: tuple[Stage, ...] = build_plan(compose(words), "r").stages
    return {stage.name: (asdict(stage), _content(asdict(stage))) for stage in planned}


def own_rows(directory: Path) -> list[str]:
    """Words of an environment of forty rows, whose number the spec does not name."""
    rows = directory / "rows.jsonl"
    rows.write_text("".join(f'{{"question": "1 + {n}", "answer": "{n + 1}"}}\n' for n in range(40)))
    return [
        f"outputs={directory}",
        "env=graded",
        f"env.rows={rows}",
        "env.held_out.split=null",
        "env.grader=exact",
        "env.columns={prompt: question, answer: answer}",
    ]


@pytest.mark.parametrize(
    ("recipe", "length"),
    [
        *((recipe, []) for recipe in sorted(options("recipes"))[::6]),
        *((recipe, EPOCHS) for recipe in EMBEDDED),
    ],
)
def test_a_recipe_has_the_same_plan_before_and_after_prepare(
    recipe: str, length: list[str], tmp_path: Path
) -> None:
    words = [f"recipes={recipe}", f"outputs={tmp_path}", *length]
    before = stages(words)
    spec = compose(words)
    place = task_set_place(spec)
    # Also where one would refuse this number of tasks, or a warm-up longer than they allow.
    write_manifest(spec, train=1, held_out=1)
    assert stages(words) == before
    assert task_set_place(compose(words)) == place


def test_too_few_tasks_for_a_step_end_the_preparation(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = [*own_rows(tmp_path), *EPOCHS, "training.prompts_per_step=64"]
    for number in (1, 2):
        assert main(["run", "--lines", *words]) == ExitCode.TASKS
        output = capfd.readouterr()
        assert "set training.prompts_per_step=" in output.out + output.err
        assert len([*tmp_path.glob("runs/*/attempt_1/prepare/log.txt")]) == number
    assert not [*tmp_path.glob("runs/*/attempt_1/train")]
