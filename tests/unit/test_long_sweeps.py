"""Sweeps of thousands of points: each plan is built when its run starts, and what points share is held once."""

from __future__ import annotations

from pathlib import Path

import pytest

from xp.cli.run_plans import open_plans as _sweep
from xp.compose import compose_sweep
from xp.errors import XpError
from xp.planning.plan import SweepPlans, build_plan

RATES = "training.learning_rate=1e-4,2e-4"


def test_points_share_the_sections_in_which_they_do_not_differ(tmp_path: Path) -> None:
    points = compose_sweep(["seed=range(0,50)", RATES, f"outputs={tmp_path}"])
    assert len(points) == 100
    assert len({id(point.spec.env) for point in points}) == 1
    assert len({id(point.spec.training) for point in points}) == 100  # neighbours differ in their rate
    assert [(point.spec.seed, point.spec.training.learning_rate) for point in points[:3]] == [
        (0, 1e-4),
        (0, 2e-4),
        (1, 1e-4),
    ]


def test_plans_are_those_that_would_be_built_one_by_one_and_are_held_by_nobody(tmp_path: Path) -> None:
    specs = [point.spec for point in compose_sweep(["seed=1,2,3", f"outputs={tmp_path}"])]
    plans, left = _sweep(specs, again=False)
    assert (len(plans), left) == (3, [])
    assert list(plans) == [build_plan(spec, run, 1) for spec, run in zip(specs, plans.run_ids, strict=True)]
    assert plans[0] is not plans[0]
    assert isinstance(plans[1:], SweepPlans)
    assert plans[1:].specs == specs[1:]


def test_every_point_is_planned_before_the_first_one_runs(tmp_path: Path) -> None:
    illegal = ["training.group_size=4,1,8", f"outputs={tmp_path}"]
    with pytest.raises(XpError, match="group_size"):
        _sweep([point.spec for point in compose_sweep(illegal)], again=False)
