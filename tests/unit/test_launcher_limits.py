"""What no job can have from a launcher is refused by the plan; and every recipe fits its own hardware."""

from __future__ import annotations

import pytest

from xp.composition import compose, options
from xp.planning.memory.fit import memory_lines
from xp.planning.plan import build_plan

TRL = ("recipes=whodunit-trl", "hardware.num_nodes=2")
SKYRL = ("recipes=whodunit-skyrl", "hardware.num_nodes=2")


@pytest.mark.parametrize(
    "overrides",
    [
        [*SKYRL, "launcher=ray"],
        [*SKYRL, "launcher=slurm"],
        [*TRL, "launcher=ray"],
        [*TRL, "launcher=slurm"],
        ["recipes=whodunit-skyrl", "launcher=slurm"],
    ],
)
def test_the_plan_takes_what_the_launcher_can_run(overrides: list[str]) -> None:
    assert build_plan(compose(overrides), "r").stages


@pytest.mark.parametrize("recipe", options("recipes"))
def test_a_recipe_fits_its_own_hardware_by_its_own_plan(recipe: str) -> None:
    spec = compose([f"recipes={recipe}"])
    lines = memory_lines(spec)
    assert spec.hardware.accelerator == "cpu" or " fits with " in lines[-1]
