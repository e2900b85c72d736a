"""What no job can have from a launcher is refused by the plan; and every recipe fits its own hardware."""

from __future__ import annotations

import pytest

from xp.composition import compose
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
