"""Groups and overrides -> RunSpec; the only room that imports hydra or omegaconf."""

from __future__ import annotations

from xp.compose.groups import GROUPS, ROOT, options
from xp.compose.origins import Origin, origin_of
from xp.compose.points import Point, compose, compose_sweep, from_container, parse_assignments, to_yaml

__all__ = [
    "GROUPS",
    "ROOT",
    "Origin",
    "Point",
    "compose",
    "compose_sweep",
    "from_container",
    "options",
    "origin_of",
    "parse_assignments",
    "to_yaml",
]
