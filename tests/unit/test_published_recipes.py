"""Recipes of published runs: every key that their sources set is rendered with the source's value."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tools.public_scripts import FILE, expected, home, page, received, sources, value_here
from xp.composition import compose
from xp.planning.memory.fit import MemoryVerdict, fit
from xp.planning.plan import build_plan

SOURCES = sources()
SLIMES_SCRIPT = "scripts/run-qwen3-4B.sh"


@pytest.mark.parametrize("recipe", SOURCES)
def test_each_key_of_the_source_is_rendered_with_its_value(recipe: str) -> None:
    spec = compose([f"recipes={recipe}"])
    native = received(spec)
    other = {
        row["key"]: (expected(row), value_here(spec, row, native))
        for row in SOURCES[recipe]
        if "differs" not in row and value_here(spec, row, native) != expected(row)
    }
    assert other == {}
    same = [row["key"] for row in SOURCES[recipe] if "differs" in row and native.get(row["key"]) == row["value"]]
    assert same == [], "called different and is not"


@pytest.mark.parametrize("recipe", SOURCES)
def test_every_row_has_its_address_and_the_recipe_its_expectation(recipe: str) -> None:
    assert all(row["source"].startswith("https://github.com/") for row in SOURCES[recipe])
    head = (FILE.parents[2] / "recipes" / f"{recipe}.yaml").read_text(encoding="utf-8").partition("defaults:")[0]
    assert "# Expect: " in head


@pytest.mark.parametrize("recipe", SOURCES)
def test_every_key_of_a_script_has_a_home_or_a_sentence(recipe: str) -> None:
    spec = compose([f"recipes={recipe}"])
    assert [row["key"] for row in SOURCES[recipe] if len(home(spec, row)) < 5] == []


@pytest.mark.skipif("SLIME_PATH" not in os.environ, reason="needs a checkout of Slime: SLIME_PATH=...")
def test_no_flag_of_slimes_script_is_left_over() -> None:
    text = (Path(os.environ["SLIME_PATH"]) / SLIMES_SCRIPT).read_text(encoding="utf-8")
    arguments = [
        line.split("#")[0] for block in re.findall(r"_ARGS=\((.*?)\n\)", text, re.DOTALL) for line in block.splitlines()
    ]
    arguments += text.partition("train.py")[2].splitlines()
    flags = {word for line in arguments for word in line.split() if word.startswith("--")}
    assert flags - {row["key"] for row in SOURCES["dapo-slime"]} == set()


def test_the_page_of_public_scripts_is_the_rows() -> None:
    assert (FILE.parents[2] / "docs/public-scripts.md").read_text(encoding="utf-8") == page(), "run make docs"


@pytest.mark.parametrize("recipe", SOURCES)
def test_it_is_planned_and_fits(recipe: str) -> None:
    spec = compose([f"recipes={recipe}"])
    assert build_plan(spec, "r").stages
    assert fit(spec).verdict in (MemoryVerdict.FITS, MemoryVerdict.LIKELY)
