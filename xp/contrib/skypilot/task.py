"""Stages -> the YAML of a SkyPilot managed job, which a person can read and submit again."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, model_validator

from xp.execution.launchers import service
from xp.execution.launchers.modal_app import BY_ADDRESS, LOCKED, PYTHON
from xp.execution.launchers.node.job_spec import JOB_SPEC
from xp.execution.launchers.service import LOCKS, MOUNT, SubmittedStage, lock_of
from xp.planning.job import Job, Resources, Stage
from xp.planning.refusals import needs_one_node
from xp.planning.runtimes import AFTER_LOCK, added_to_image
from xp.spec.place import LauncherSpec

TASK_FILE = "skypilot.yaml"
CODE = "/xp/code"
JOB_SPECS = "/xp/jobs"
LOCK_FILES = "/xp/environment"
"""Paths on the node of xp's package, job specs, and the lock's files."""
EXIT_CODE = "xp-exit-code"
"""Beginning of the last line of a failed stage's log, since SkyPilot's queue has no exit codes."""
UV = "~/.local/bin/uv"
"""Path of uv, which SkyPilot installs on every node."""
PROGRAM = "~/xp-python/bin/python"

ACCELERATORS = {
    "t4": "T4",
    "l4": "L4",
    "a10g": "A10G",
    "l40s": "L40S",
    "a100-40gb": "A100",
    "a100-80gb": "A100-80GB",
    "h100": "H100",
    "h200": "H200",
    "b200": "B200",
}
"""xp's names -> SkyPilot's (`sky show-gpus`)."""


class SkypilotOptions(BaseModel):
    """Fields of `launcher.options` for launcher=skypilot and launcher=kubernetes."""

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


class _Dumper(yaml.SafeDumper):
    """YAML dumper that writes texts of several lines as blocks."""


_Dumper.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar(
        "tag:yaml.org,2002:str", text, style="|" if "\n" in text else None
    ),
)


def task_text(name: str, tasks: Sequence[SubmittedStage], spec: LauncherSpec) -> str:
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
    return yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, width=1000)


def limit_of(stage: Stage) -> str | None:
    """One sentence, with a remedy, for a stage that SkyPilot cannot run; else None."""
    resources = stage.job.resources
    limit = needs_one_node(stage, "launcher=skypilot gives a stage one node")
    if limit is not None:
        return limit
    if resources.num_accelerators and resources.accelerator not in ACCELERATORS:
        return f"hardware.accelerator={resources.accelerator}: launcher=skypilot has {', '.join(ACCELERATORS)}"
    return service.limit_of(stage, "skypilot")


def _document(
    stage: SubmittedStage, options: SkypilotOptions, spec: LauncherSpec
) -> dict[str, Any]:
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
    if job.runtime.image_checkouts and job.runtime.project is not None:
        document["envs"] = dict(job.runtime.image_checkouts)
    if stage.secrets:
        document["secrets"] = dict.fromkeys(stage.secrets)
    program = PROGRAM if lock is not None else "python3"
    document["setup"] = _setup(job)
    lines = (
        "code=0",
        f"export PYTHONPATH={CODE}",
        f'{program} -m xp.execution.launchers.node.on_node "$SKYPILOT_TASK_ID" {JOB_SPECS}/{name}.json || code=$?',
        f'[ $code = 0 ] || echo "{EXIT_CODE} $code"',
        "exit $code",
    )
    document["run"] = "".join(f"{line}\n" for line in lines)
    return document


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
    for file in lock.files:
        how = BY_ADDRESS if file.name == AFTER_LOCK else LOCKED
        lines.append(
            f"{UV} pip install --python {PROGRAM} {how} --requirements {LOCK_FILES}/{file.name}"
        )
    return "\n".join([*lines, ""])


def exit_code_in(log: str) -> int | None:
    """The last exit code in a stage's log; None if there is none."""
    codes = re.findall(rf"^(?:\([^)]*\) )?{EXIT_CODE} (\d{{1,3}})\s*$", log, re.MULTILINE)
    return int(codes[-1]) if codes else None
