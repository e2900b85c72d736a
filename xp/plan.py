"""RunSpec -> Plan: which stages a run has, decided before anything starts."""

from __future__ import annotations

from dataclasses import dataclass

from xp.job import Stage
from xp.spec import RunSpec


@dataclass(frozen=True)
class Plan:
    """What would run, in order; holds nothing of a launcher and no path of a machine."""

    run_id: str
    spec: RunSpec
    stages: tuple[Stage, ...]
