"""Names what a launcher cannot give any job, from the plan alone: found while planning, and again before a launch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from xp.errors import ExitCode, XpError
from xp.job import Job, Stage
from xp.spec.place import LauncherName, LauncherSpec


def limits(spec: LauncherSpec, stages: Sequence[Stage]) -> Iterator[str]:
    """One sentence, with the way out, for each kind of job that this launcher cannot run anywhere."""
    told = {sentence: None for stage in stages if (sentence := _limit(spec, stage)) is not None}
    yield from told


def check_limits(spec: LauncherSpec, stages: Sequence[Stage]) -> None:
    """Raise XpError(PLAN) with every such sentence."""
    if beyond := list(limits(spec, stages)):
        raise XpError("\n".join(beyond), ExitCode.PLAN)


def _limit(spec: LauncherSpec, stage: Stage) -> str | None:
    num_nodes = stage.job.resources.num_nodes
    if spec.name is LauncherName.MODAL:
        return _limit_of_modal(spec, stage)
    if num_nodes == 1 or (spec.name is LauncherName.RAY and asks_itself(stage.job)):
        return None
    has = {
        LauncherName.LOCAL: "launcher=local has this machine alone",
        LauncherName.SLURM: "launcher=slurm gives a stage one so far",
        LauncherName.RAY: "a Ray job's program is on one: only skyrl and slime ask Ray for workers on others",
    }[spec.name]
    return (
        f"hardware.num_nodes: stage {stage.name} needs {num_nodes} nodes, and {has};"
        " choose a hardware option of one node, or launcher=ray with backend=skyrl or slime"
    )


def _limit_of_modal(spec: LauncherSpec, stage: Stage) -> str | None:
    from xp.launchers.modal_app import check_job

    try:
        check_job(stage.name, stage.job, spec)
    except XpError as error:
        # A secret's name there is no part of the plan: the launch asks for it.
        return str(error) if error.code is ExitCode.PLAN else None
    return None


def asks_itself(job: Job) -> bool:
    """Whether a job's program takes its accelerators from Ray by itself."""
    return "ray" in job.runtime.packages
