"""What a run needs, and where it gets it."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from xp.spec.section import Count, Name, Seconds, Section


class Hardware(Section):
    """What the job needs; where it gets it is the launcher's affair."""

    name: Name
    accelerator: str
    """`cpu`, or the accelerator's name."""
    accelerators_per_node: Annotated[int, Field(ge=0)]
    accelerator_memory_gb: Annotated[float, Field(ge=0)]
    num_nodes: Count
    num_cpus: Count
    """Per node."""
    memory_gb: Annotated[float, Field(gt=0)]
    """Of the host, per node."""


class LauncherName(StrEnum):
    LOCAL = "local"


class LauncherSpec(Section):
    """Where it runs."""

    name: LauncherName
    grace_s: Seconds
    """Between TERM and KILL when a run is stopped."""
    max_restarts: Annotated[int, Field(ge=0)]
    """New attempts after an infrastructure failure; never after a fault of the user's."""
