"""What no job can have from a launcher is refused by the plan; and every recipe fits its own hardware."""

from __future__ import annotations

from pathlib import Path

import pytest

from xp.composition import compose, options
from xp.planning.memory.fit import memory_lines
from xp.planning.plan import build_plan
from xp.planning.refusals import sandbox_refusals

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


HARBOR = ("env=harbor", "env.target=/my/tasks", "env.sandbox=none")


@pytest.mark.parametrize(
    ("overrides", "fields"),
    [
        ([], []),
        (["env.python=/x/python"], ["env.python"]),
        (["env=verifiers", "env.target=my-package"], ["env.provider"]),
        ([*HARBOR], ["env.target"]),
        (["env=inspect", "env.target=/my/tasks.py@sums"], ["env.provider", "env.target"]),
        (["env=inspect", "env.target=inspect_evals/gsm8k"], ["env.provider"]),
        (["sft.data=/x/talk.jsonl"], ["sft.data"]),
        (["sft.data=run:earlier"], ["sft.data"]),
        (["sft.data=hf:ORG/NAME"], []),
        (["sft.data=solve"], []),
    ],
)
def test_files_of_this_machine_are_refused_where_a_cloud_cannot_see_them(
    overrides: list[str], fields: list[str], tmp_path: Path
) -> None:
    words = [word.replace("/x/", f"{tmp_path}/") for word in overrides]
    (tmp_path / "talk.jsonl").touch()
    for launcher, place in (("modal", "Modal's containers"), ("skypilot", "SkyPilot's machines")):
        bucket = ["launcher.options.bucket=s3://b"] if launcher == "skypilot" else []
        refusals = [*sandbox_refusals(compose([f"launcher={launcher}", *bucket, *words]))]
        assert [one.field for one in refusals] == fields
        assert all(place in one.reason for one in refusals)
    assert [*sandbox_refusals(compose(words))] == []


@pytest.mark.parametrize("recipe", options("recipes"))
def test_a_recipe_fits_its_own_hardware_by_its_own_plan(recipe: str) -> None:
    spec = compose([f"recipes={recipe}"])
    lines = memory_lines(spec)
    assert spec.hardware.accelerator == "cpu" or " fits with " in lines[-1]
