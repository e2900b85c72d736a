"""The whole plan of every recipe, committed: `make golden` rewrites the files and the diff is the review."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from xp.composition import compose, options
from xp.planning.plan import build_plan

PLANS = Path(__file__).parent / "plans"
DIGEST = re.compile(r"(tasks/|models/[a-z]+-|\\?\"(?:source|made_from)\\?\": \\?\")[0-9a-f]{16,64}")


def rendered(recipe: str) -> str:
    """The plan's JSON, a line of a file on a line of its own; digests of our own source files, which change with every
    commit, are blotted out."""
    plan = json.loads(build_plan(compose([f"recipes={recipe}"]), run_id="golden").to_json())
    for stage in plan["stages"]:
        files = stage["job"]["files"]
        stage["job"]["files"] = {path: text.splitlines() for path, text in files.items()}
    return DIGEST.sub(r"\1<digest>", json.dumps(plan, indent=1, ensure_ascii=False) + "\n")


@pytest.mark.parametrize("recipe", options("recipes"))
def test_the_plan_of_a_recipe_is_the_reviewed_one(recipe: str) -> None:
    file = PLANS / f"{recipe}.json"
    if os.environ.get("XP_GOLDEN") == "write":
        file.write_text(rendered(recipe))
    assert file.is_file(), f"{file} is missing: run make golden and review it"
    assert rendered(recipe) == file.read_text(), "the plan changed: run make golden and review the diff"


def test_no_golden_plan_is_left_over() -> None:
    assert {file.stem for file in PLANS.glob("*.json")} == set(options("recipes"))
