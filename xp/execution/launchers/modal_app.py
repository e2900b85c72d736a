"""Stages -> the text of a Modal app, which launcher=modal submits and a person can read and run again."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from xp.errors import ExitCode, XpError
from xp.execution.launchers.base import StageContext
from xp.execution.launchers.node.job_spec import JOB_SPEC
from xp.execution.launchers.service import (
    BY_ADDRESS,
    LOCKED,
    LOCKS,
    MOUNT,
    PYTHON,
    lock_of,
)
from xp.planning.job import Job, Resources
from xp.planning.runtimes import AFTER_LOCK, added_to_image
from xp.spec.launcher import LauncherSpec

APP_FILE = "modal_app.py"
CODE = "/xp/code"
JOB_SPECS = "/xp/jobs"
COMMIT_S = 30
"""Seconds between commits of the volume."""

GPUS = {
    name: name.upper()
    for name in ("t4", "l4", "a10g", "l40s", "a100-40gb", "a100-80gb", "h100", "h200", "b200")
} | {
    "a10g": "A10",
    "h100": "H100!",  # without the `!` Modal may provide an H200, which would change the experiment
}
"""xp's names -> Modal's (modal.com/docs/guide/gpu); only Modal's server checks them, not its client."""
MAX_GPUS = {"A10": 4}
"""Largest number of GPUs per container by modal.com/docs/guide/gpu; 8 for other GPUs."""

HEAD = '''\
"""{title}, as xp submitted it: modal run --detach {file}"""

import os
import subprocess

import modal

app = modal.App({app!a})
outputs = modal.Volume.from_name({volume!a}, create_if_missing=True)


def carry_out(stage: str) -> int:
    """Runs a stage's job spec; the result is in result.json beside its log on the volume."""
    job = app.app_id or "local"  # of all calls of this app, so that one that is made again goes on
    if not modal.is_local():
        outputs.reload()
    argv = ["python", "-m", "xp.execution.launchers.node.on_node", job, f"{specs}/{{stage}}.json"]
    process = subprocess.Popen(argv, env={{**os.environ, "PYTHONPATH": {code!a}}})
    try:
        while (code := ended(process)) is None:
            commit()
    except KeyboardInterrupt:  # preempted: Modal makes this call again, which goes on from the last checkpoint
        process.terminate()
        process.wait()
        raise
    finally:
        commit()
    return code


def ended(process: subprocess.Popen) -> int | None:
    try:
        return process.wait({commit_s})
    except subprocess.TimeoutExpired:
        return None


def commit() -> None:
    """Commit the volume: files written so far outlive the container, and `runs logs` shows them."""
    if not modal.is_local():
        outputs.commit()
'''

FUNCTION = """

@app.function(
    image={image}
    .add_local_dir({local_code!a}, {code!a})
    .add_local_file({local_job!a}, {job_spec!a}),
    gpu={gpu!a},
    cpu={cpu},
    memory={memory_mb},
    timeout={timeout_s},
    retries={retries},
    volumes={{{mount!a}: outputs}},
    secrets={secrets},
)
def {function}() -> int:
    return carry_out({stage!a})
"""

ALONE = """

@app.local_entrypoint()
def main() -> None:
    call = {function}.spawn()
    print("xp-submitted", app.app_id, call.object_id)
"""

CHAIN = """

@app.function(image=modal.Image.debian_slim(), timeout={timeout_s})
def whole_run() -> int:
    for stage in ({functions},):
        if code := stage.remote():
            return code
    return 0


@app.local_entrypoint()
def main() -> None:
    call = whole_run.spawn()
    print("xp-submitted", app.app_id, call.object_id)
"""


def app_text(title: str, name: str, stages: Sequence[StageContext], spec: LauncherSpec) -> str:
    """Text of the app of one stage, or of a chain of stages.

    Raises:
        XpError: PLAN, as `limit_of` of xp.execution.launchers.service.
    """
    head = HEAD.format(
        title=title,
        file=APP_FILE,
        app=name,
        volume=str(spec.volume),
        specs=JOB_SPECS,
        code=CODE,
        commit_s=COMMIT_S,
    )
    functions = "".join(_function(stage, spec) for stage in stages)
    names = [function_name(stage.stage.name) for stage in stages]
    if len(stages) == 1:
        return head + functions + ALONE.format(function=names[0])
    return head + functions + CHAIN.format(functions=", ".join(names), timeout_s=spec.timeout_s)


def check_secrets(stage: StageContext, spec: LauncherSpec) -> None:
    """Raises XpError(SECRET) for a stage with secrets, or trackers with keys, where no Modal Secret is named."""
    if stage.secrets and spec.secret_name is None:
        raise XpError(
            f"stage {stage.stage.name} needs {', '.join(stage.secrets)} of a Modal Secret: make one of these names (modal"
            " secret create NAME --from-dotenv .env) and set launcher.secret_name=NAME; with WANDB_MODE=offline, W&B"
            " needs no key",
            ExitCode.SECRET,
        )


def accelerator_limit(resources: Resources) -> str | None:
    """One sentence for accelerators that xp has no name of Modal's for; else None."""
    if resources.num_accelerators and resources.accelerator not in GPUS:
        return f"hardware.accelerator={resources.accelerator}: launcher=modal has {', '.join(GPUS)}"
    return None


def untried_number(resources: Resources) -> str | None:
    """A warning for more GPUs than Modal's documentation has for a container, which only its server checks; else None."""
    gpu = GPUS.get(resources.accelerator, "")
    most = MAX_GPUS.get(gpu, 8)
    number = resources.num_accelerators
    if not gpu or number <= most:
        return None
    return f"hardware: Not tried: {number} x {gpu} in a container of Modal's, whose documentation has {most}."


def gpu_string(resources: Resources) -> str | None:
    """Modal's name of a stage's accelerators, which have no `accelerator_limit`. None means that it needs none."""
    if not resources.num_accelerators:
        return None
    return f"{GPUS[resources.accelerator]}:{resources.num_accelerators}"


def function_name(stage: str) -> str:
    """A stage's name as a Python identifier."""
    return "stage_" + re.sub(r"\W", "_", stage)


def _function(stage: StageContext, spec: LauncherSpec) -> str:
    job = stage.stage.job
    resources = job.resources
    keys = list(stage.secrets)
    if keys:
        secret = f"modal.Secret.from_name({spec.secret_name!a}, required_keys={keys!r})"
    else:
        secret = ""
    return FUNCTION.format(
        image=image_text(job, spec, stage.directory / LOCKS),
        local_code=str(stage.code),
        code=CODE,
        local_job=str(stage.directory / JOB_SPEC),
        job_spec=f"{JOB_SPECS}/{stage.stage.name}.json",
        gpu=gpu_string(resources),
        cpu=float(resources.num_cpus),
        memory_mb=round(resources.memory_gb * 1024),
        timeout_s=spec.timeout_s,
        # A failed stage returns a result; exceptions come from a time limit or a failed machine. With a supervisor,
        # the run begins a new attempt instead.
        retries=spec.max_restarts if spec.detach else 0,
        mount=MOUNT,
        secrets=f"[{secret}]",
        function=function_name(stage.stage.name),
        stage=stage.stage.name,
    )


def image_text(job: Job, spec: LauncherSpec, locks: Path) -> str:
    """The image as a Python expression of Modal's API.

    Args:
        job: the stage's job.
        spec: the launcher's section.
        locks: directory with a copy of the lock's files.
    """
    lock = lock_of(job)
    if lock is None:
        return _trainer_image(job)
    if job.resources.num_accelerators:
        base = f"modal.Image.from_registry({spec.base_image!a}, add_python={PYTHON!a})"
    else:
        base = f"modal.Image.debian_slim(python_version={PYTHON!a})"
    layers = [
        f".uv_pip_install(requirements=[{str(locks / file.name)!a}],"
        f" extra_options={BY_ADDRESS if file.name == AFTER_LOCK else LOCKED!a})"
        for file in lock.files
    ]
    return "\n    ".join([base, *layers])


def _trainer_image(job: Job) -> str:
    """Expression of an image with the trainer; for a trainer in checkouts, with xp's requirements added."""
    image = f"modal.Image.from_registry({job.runtime.image!a})"
    if job.runtime.project is None:
        return image
    added = ", ".join(map(ascii, added_to_image()))
    return f"{image}\n    .pip_install({added})\n    .env({dict(job.runtime.image_checkouts)!a})"
