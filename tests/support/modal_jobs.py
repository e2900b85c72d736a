"""Stages that a Modal app runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from xp.execution.launchers.base import Context, StageContext
from xp.planning.job import Job, Resources, Runtime, Stage

TRAINS = ("torch", "transformers", "trl", "openreward")
H100S = Resources("h100", 8, 1, 96, 1000.0)


def job(resources: Resources = H100S, **runtime: Any) -> Job:
    secrets = runtime.pop("secrets", {})
    runtime.setdefault("packages", TRAINS)
    return Job(
        ("python", "-m", "x"),
        {},
        (),
        resources,
        Runtime(**runtime),
        secrets=secrets,
    )


def part(name: str, one: Job, place: str = "/o") -> StageContext:
    return StageContext(Stage(name, one), Context("run", 1, Path(place), "attempt"))
