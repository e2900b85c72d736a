"""Two of the planner's numbers that columns need; they are computed above this table and loaded when they are needed."""

from __future__ import annotations

from importlib import import_module

from xp.spec import RunSpec


def num_steps(spec: RunSpec) -> int | None:
    """Rollout steps of the run (xp.planning.run_size). None means that they are not known yet."""
    steps: int | None = import_module("xp.planning.run_size").num_steps(spec)
    return steps


def engine_stays_awake(spec: RunSpec) -> bool:
    """Returns whether a colocated engine keeps its memory during an update (xp.planning.memory.estimate)."""
    is_awake: bool = import_module("xp.planning.memory.estimate").engine_stays_awake(spec)
    return is_awake
