"""Each recipe by its own plan: it fits its hardware, and has as many evaluated episodes as are told."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from tests.support.task_set import stage_config, write_manifest
from xp.composition import compose, options
from xp.planning.memory.fit import memory_lines
from xp.planning.plan import build_plan
from xp.planning.run_size import expected_tasks
from xp.planning.size_lines import evaluation_line
from xp.spec import RunSpec
from xp.tasks.schedule import evaluated_episodes
from xp.worker.engines.config import EvaluateConfig

RECIPES = options("recipes")


@dataclass(frozen=True)
class Named:
    task_id: str


@cache
def spec_of(recipe: str) -> RunSpec:
    return compose([f"recipes={recipe}"])


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_fits_its_own_hardware_by_its_own_plan(recipe: str) -> None:
    spec = spec_of(recipe)
    assert spec.hardware.accelerator == "cpu" or " fits with " in memory_lines(spec)[-1]


@pytest.mark.parametrize("recipe", sorted(RECIPES)[::5])
def test_it_plays_as_many_held_out_episodes_as_its_plan_says(recipe: str, tmp_path: Path) -> None:
    spec = spec_of(recipe).model_copy(update={"outputs": str(tmp_path)})
    write_manifest(spec, train=2000, held_out=expected_tasks(spec).held_out or 70)
    config = EvaluateConfig.from_json(stage_config(build_plan(spec, "r"), "evaluate"))
    rows = [Named(f"a/test/{index}") for index in range(expected_tasks(spec).held_out or 0)]
    episodes = len(evaluated_episodes(config.spec.evaluation, rows))
    line = evaluation_line(spec)
    assert f"= {episodes:,} episodes, before" in line
    during = re.search(r"([\d,]+) times? during", line)
    times = len(config.models) + (0 if during is None else int(during[1].replace(",", "")))
    assert f" after training: {episodes * times:,} episodes" in line
