"""Groups and overrides -> RunSpec; the only room that imports hydra or omegaconf."""

from __future__ import annotations

from xp.composition.groups import GROUPS, ROOT, options
from xp.composition.origins import Origin, origin_of
from xp.composition.points import (
    Point,
    compose,
    compose_sweep,
    faults_of_points,
    from_container,
    parse_assignments,
    recorded_with,
    to_yaml,
)
