"""Fields that the plan of an override refuses, with the reasons."""

from __future__ import annotations

from xp.composition import compose
from xp.planning.backend import spec_refusals

DENSE = ("env=whodunit", "hardware=h100x8", "model=qwen3-4b")
SERVER = ("backend=trl", "backend.engine.placement=separate", "backend.engine.accelerators=4")


def refused(*overrides: str) -> dict[str, str]:
    spec = compose([*overrides])
    return {one.field: one.reason for one in spec_refusals(spec)}
