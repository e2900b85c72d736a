"""Stages -> the YAML of a SkyPilot managed job, which a person can read and submit again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator

from xp.contrib.submitted_files import install_lines, stage_lines, to_yaml
from xp.execution.launchers import service
from xp.execution.launchers.base import StageContext
from xp.execution.launchers.node.job_spec import JOB_SPEC
from xp.execution.launchers.service import (
    LOCKS,
    MOUNT,
    PYTHON,
    lock_of,
)
from xp.lib.private_ray import NICENESS, TOKEN
from xp.planning.job import Job, Resources, Stage
from xp.planning.refusals import manages_own_gpus
from xp.planning.runtimes import added_to_image
from xp.spec.launcher import LauncherSpec
from xp.worker.nodes import MAIN

TASK_FILE = "skypilot.yaml"
CODE = "/xp/code"
JOB_SPECS = "/xp/jobs"
LOCK_FILES = "/xp/environment"
"""Paths on the node of xp's package, job specs, and the lock's files."""
UV = "~/.local/bin/uv"
"""Path of uv, which SkyPilot installs on every node."""
PROGRAM = "~/xp-python/bin/python"
PORT = 29500
"""Port of torch's rendezvous on the first node of a stage; the nodes are the stage's alone."""

ACCELERATORS = {
    "t4": "T4",
    "l4": "L4",
    "a10": "A10",
    "a10g": "A10G",
    "l40s": "L40S",
    "a100-40gb": "A100",
    "a100-80gb": "A100-80GB",
    "h100": "H100",
    "h200": "H200",
    "gh200": "GH200",
    "b200": "B200",
    "b300": "B300",
    "gb200": "GB200",
}
"""xp's names -> SkyPilot's (`sky show-gpus`)."""


class SkypilotOptions(BaseModel):
    """Fields of `launcher.options` for launcher=skypilot."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    infra: str | None = None
    """Cloud, region or Kubernetes context (`aws`, `gcp/us-central1`, `k8s/my-context`). None means that SkyPilot
    chooses."""
    bucket: str | None = None
    """Object store with the outputs root: a name, or a URL (`s3://name`)."""
    volume: str | None = None
    """SkyPilot volume with the outputs root (`sky volumes apply`), as on Kubernetes."""
    spot: bool = False
    """True uses cheaper machines that may be preempted; the job resumes from its last checkpoint on another one."""
    image: str | None = None
    """Base container image for a lock's packages. None means the cloud's default."""

    @model_validator(mode="after")
    def _one_outputs_root(self) -> SkypilotOptions:
        if (self.bucket is None) == (self.volume is None):
            raise ValueError(
                "set one of bucket and volume: the outputs root that all stages of a run see"
            )
        return self


def task_text(name: str, tasks: Sequence[StageContext], spec: LauncherSpec) -> str:
    """The YAML of one stage, or of a chain of stages.

    Raises:
        XpError: PLAN if no lock has a stage's imports.
    """
    options = SkypilotOptions.model_validate(spec.options)
    documents = [_document(task, options, spec) for task in tasks]
    if len(documents) == 1:
        documents[0]["name"] = name
    else:
        documents.insert(0, {"name": name})
    return to_yaml(documents)


def limit_of(stage: Stage) -> str | None:
    """One sentence, with a remedy, for a stage that SkyPilot cannot run; else None."""
    resources = stage.job.resources
    if resources.num_accelerators and resources.accelerator not in ACCELERATORS:
        return f"hardware.accelerator={resources.accelerator}: launcher=skypilot has {', '.join(ACCELERATORS)}"
    return service.limit_of(stage, "skypilot")


def _document(stage: StageContext, options: SkypilotOptions, spec: LauncherSpec) -> dict[str, Any]:
    job = stage.stage.job
    name = stage.stage.name
    lock = lock_of(job)
    mounts: dict[str, Any] = {
        CODE: str(stage.code),
        f"{JOB_SPECS}/{name}.json": str(stage.directory / JOB_SPEC),
    }
    if lock is not None:
        mounts[LOCK_FILES] = str(stage.directory / LOCKS)
    document: dict[str, Any] = {"name": name, "resources": _resources(job, options, spec)}
    if options.volume is not None:
        document["volumes"] = {MOUNT: options.volume}
    else:
        place = "source" if "://" in str(options.bucket) else "name"
        mounts[MOUNT] = {place: options.bucket, "mode": "MOUNT_CACHED"}
    document["file_mounts"] = mounts
    variables: dict[str, str] = {}
    if job.runtime.image_checkouts and job.runtime.project is not None:
        variables.update(job.runtime.image_checkouts)
    secrets = list(stage.secrets)
    if needs_ray(stage.stage):
        # Ray's processes on each node, which start the trainer's, are started before the stage.
        variables |= {**job.env, **NICENESS, "RAY_AUTH_MODE": "token"}
        secrets.append(TOKEN)
    if job.resources.num_nodes > 1:
        document["num_nodes"] = job.resources.num_nodes
    if variables:
        document["envs"] = variables
    if secrets:
        document["secrets"] = dict.fromkeys(secrets)
    program = PROGRAM if lock is not None else "python3"
    document["setup"] = _setup(job)
    lines = (
        f"export PYTHONPATH={CODE}",
        "export XP_NODE=${SKYPILOT_NODE_RANK:-0}",
        *_nodes_lines(stage.stage, program),
        *stage_lines("$SKYPILOT_TASK_ID", is_chain=False),
        f"run_stage {name} {program} {JOB_SPECS}/{name}.json",
    )
    document["run"] = "".join(f"{line}\n" for line in lines)
    return document


def needs_ray(stage: Stage) -> bool:
    """Returns whether a stage needs a Ray cluster of several nodes."""
    return stage.job.resources.num_nodes > 1 and manages_own_gpus(stage.job)


def _nodes_lines(stage: Stage, program: str) -> list[str]:
    """Lines that tell each node of several where the first one is, and start Ray on them where the stage needs it."""
    if stage.job.resources.num_nodes == 1:
        return []
    main = 'main=$(echo "$SKYPILOT_NODE_IPS" | head -n 1)'
    if not needs_ray(stage):
        return [main, f'export {MAIN}="$main:{PORT}"']
    lines = [main, 'export PATH="$HOME/.local/bin:$PATH"']
    if lock_of(stage.job) is not None:
        environment = program.removesuffix("/bin/python")
        lines.append(f"export VIRTUAL_ENV={environment}")
        lines.append('export PATH="$VIRTUAL_ENV/bin:$PATH"')
    # `ray symmetric-run` refuses a node on which a Ray runs, and SkyPilot's own runs on each: hence its template.
    lines += [
        'RAY_HEAD_IP_ADDRESS="$main" ~/sky_templates/ray/start_cluster || exit 11',
        '[ "$XP_NODE" = 0 ] || exit 0',
        'export RAY_ADDRESS="$main:6379"',
    ]
    return lines


def _resources(job: Job, options: SkypilotOptions, spec: LauncherSpec) -> dict[str, Any]:
    needs: Resources = job.resources
    resources: dict[str, Any] = {"cpus": f"{needs.num_cpus}+", "memory": f"{needs.memory_gb:g}+"}
    if options.infra is not None:
        resources["infra"] = options.infra
    if needs.num_accelerators:
        resources["accelerators"] = {ACCELERATORS[needs.accelerator]: needs.num_accelerators}
    image = job.runtime.image or options.image
    if image is not None:
        resources["image_id"] = f"docker:{image}"
    if options.spot:
        resources["use_spot"] = True
    if spec.max_restarts:
        resources["job_recovery"] = {"max_restarts_on_errors": spec.max_restarts}
    return resources


def _setup(job: Job) -> str:
    """Commands that install the job's Python from its lock, or xp's additions to an image."""
    lock = lock_of(job)
    if lock is None:
        added = " ".join(f"'{line}'" for line in added_to_image())
        if job.runtime.project is not None:
            return f"python3 -m pip install {added}\n"
        return "true\n"
    lines = ["set -e", f"[ -x {PROGRAM} ] || {UV} venv --python {PYTHON} ~/xp-python"]
    return "\n".join([*lines, *install_lines(UV, PROGRAM, LOCK_FILES, lock), ""])
