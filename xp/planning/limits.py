"""Finds jobs that a launcher can never run, from the plan alone; used in planning and again before a launch."""

from __future__ import annotations

from collections.abc import Sequence

from xp.errors import ExitCode, XpError
from xp.job import Job, Stage
from xp.plugins import Kind, load
from xp.spec.place import LauncherSpec


def check_limits(spec: LauncherSpec, stages: Sequence[Stage]) -> None:
    """Raises XpError(PLAN) with one sentence for each kind of job that this launcher can never run."""
    module = load(Kind.LAUNCHER, spec.name, needs=("make_launcher", "limit"))
    beyond = dict.fromkeys(said for stage in stages if (said := module.limit(spec, stage)) is not None)
    if beyond:
        raise XpError("\n".join(beyond), ExitCode.PLAN)


def needs_one_node(stage: Stage, has: str) -> str | None:
    """The sentence for a job of several nodes on a launcher with one; `has` describes what the launcher provides."""
    num_nodes = stage.job.resources.num_nodes
    if num_nodes == 1:
        return None
    return (
        f"hardware.num_nodes: stage {stage.name} needs {num_nodes} nodes, and {has};"
        " choose a hardware option of one node, or launcher=slurm or ray"
    )


def asks_itself(job: Job) -> bool:
    """Returns whether a job's program itself requests its accelerators from Ray."""
    return "ray" in job.runtime.packages
