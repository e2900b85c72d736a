"""Groups and overrides -> RunSpec; the only room that imports hydra or omegaconf."""

from __future__ import annotations

from xp.compose.alternatives import give_way, other_of, with_value
from xp.compose.groups import GROUPS, ROOT, options
from xp.compose.origins import Origin, origin_of
from xp.compose.points import (
    Point,
    compose,
    compose_sweep,
    faults_of_points,
    from_container,
    parse_assignments,
    to_yaml,
)

__all__ = [
    "GROUPS",
    "ROOT",
    "Origin",
    "Point",
    "compose",
    "compose_sweep",
    "faults_of_points",
    "from_container",
    "give_way",
    "options",
    "origin_of",
    "other_of",
    "parse_assignments",
    "to_yaml",
    "with_value",
]
