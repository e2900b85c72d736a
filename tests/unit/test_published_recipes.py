"""Recipes of published runs: every key that their sources set is rendered with the source's value."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from xp.composition import compose
from xp.planning.backend import RunPaths
from xp.planning.memory.fit import MemoryVerdict, fit
from xp.planning.plan import build_plan

FILE = Path(__file__).parents[1] / "recorded/published_recipes.yaml"
SOURCES: dict[str, list[dict[str, Any]]] = yaml.safe_load(FILE.read_text(encoding="utf-8"))
PLACES = RunPaths(run="runs/r", attempt=1, tasks="tasks/t")


def rendered(recipe: str) -> dict[str, Any]:
    """Native keys of a recipe's trainer."""
    spec = compose([f"recipes={recipe}"])
    if spec.backend.name == "skyrl":
        from xp.backends.skyrl.control.render import native

        return native(spec) | {"trainer.policy.model.path": spec.model.path}
    from xp.backends.trl.control.render import grpo_config

    found = dict(grpo_config(spec, PLACES)) | {"model_name_or_path": spec.model.path}
    if (lora := spec.model.lora) is not None:
        found |= {"lora_r": lora.rank, "lora_alpha": lora.alpha, "lora_dropout": lora.dropout}
        found["lora_target_modules"] = [*(lora.target_modules or ())]
    return found


@pytest.mark.parametrize("recipe", SOURCES)
def test_each_key_of_the_source_is_rendered_with_its_value(recipe: str) -> None:
    native = rendered(recipe)
    other = {
        row["key"]: (row["value"], native.get(row["key"]))
        for row in SOURCES[recipe]
        if "differs" not in row and native.get(row["key"]) != row["value"]
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
def test_it_is_planned_and_fits(recipe: str) -> None:
    spec = compose([f"recipes={recipe}"])
    assert build_plan(spec, "r").stages
    assert fit(spec).verdict in (MemoryVerdict.FITS, MemoryVerdict.LIKELY)
