"""Options and script of a batch job for Slurm."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from xp.errors import ExitCode, XpError
from xp.execution.launchers import secrets_files
from xp.execution.launchers.base import Context
from xp.execution.launchers.cluster import ask
from xp.execution.launchers.node.job_spec import Spread
from xp.execution.launchers.node.on_node import REQUEUE
from xp.execution.launchers.node.spread import by_srun
from xp.planning.job import Job, Resources, Stage
from xp.spec.launcher import Container, LauncherSpec

INSTEAD_OF = {"mem-per-cpu": "mem", "mem-per-gpu": "mem", "gpus-per-node": "gres"}
"""Option of `launcher.sbatch` -> the option of xp's that it replaces, for clusters that take no other."""
BY_GPU = frozenset({"mem-per-gpu", "gpus-per-node"})
"""Options that a job without GPUs does not get."""
WARNING_S = 60
"""Seconds before the time limit at which Slurm signals a job that can be requeued."""

_RUN = """\
node=$!
trap 'kill -TERM "$node"' TERM
trap 'kill -USR1 "$node"' USR1
while wait "$node"; code=$?; kill -0 "$node" 2>/dev/null; do :; done
if [ "$code" = {requeue} ]; then scontrol requeue "JOB"; fi
exit "$code"
"""

BATCH = """\
#!/bin/bash
# {key}, as xp submitted it: {submitted}
# The job's program and its environment are in job.json beside this file.
{starts}\
{setup}\
export PYTHONPATH={code}${{PYTHONPATH:+:$PYTHONPATH}}
{python} -m xp.execution.launchers.node.on_node "$SLURM_JOB_ID" {job_spec} &
""" + _RUN.replace("JOB", "$SLURM_JOB_ID")

# The id of an array is one of its tasks' ids, too.
ARRAY = """\
#!/bin/bash
# The runs of a sweep, a task each, as xp submitted them: {submitted}
# NUMBER.txt beside this file: the parent of the run's copy of xp, then the job specs of its stages in their order.
list={directory}/"$SLURM_ARRAY_TASK_ID".txt
[ -s "$list" ] || {{ echo "no stage of task $SLURM_ARRAY_TASK_ID was left to run"; exit 0; }}
mapfile -t words <"$list"
{setup}\
export PYTHONPATH="${{words[0]}}${{PYTHONPATH:+:$PYTHONPATH}}"
{python} -m xp.execution.launchers.node.on_node "$SLURM_JOB_ID" "${{words[@]:1}}" &
""" + _RUN.replace("JOB", "${{SLURM_ARRAY_JOB_ID}}_$SLURM_ARRAY_TASK_ID")
MAIN_NODE = "MAIN_NODE:PORT"
"""Placeholder in a batch script for an address that is known only in the job."""
SEPARATORS = (",", ":")


def options(spec: LauncherSpec, resources: Resources) -> list[str]:
    """Options of sbatch for a job that needs these resources.

    Raises:
        XpError: CONFIG if `launcher.sbatch` has an option that xp sets itself.
    """
    gpus = resources.num_accelerators
    xp_options = {
        "nodes": str(resources.num_nodes),
        "ntasks": str(resources.num_nodes),
        "ntasks-per-node": "1" if resources.num_nodes > 1 else None,
        "cpus-per-task": str(resources.num_cpus),
        "mem": f"{round(resources.memory_gb * 1024)}M",
        "gres": f"{spec.gres}:{gpus}" if gpus else None,
        "partition": spec.partition if gpus else spec.prepare_partition or spec.partition,
        "account": spec.account,
        "time": None if spec.time_limit_s is None else str(-(-spec.time_limit_s // 60)),
        "signal": f"B:USR1@{WARNING_S}" if spec.requeue else None,
    }
    further = _further(spec, gpus)
    for name in INSTEAD_OF.keys() & further.keys():
        xp_options[INSTEAD_OF[name]] = None
    reserved = sorted(name for name in further if xp_options.get(name) is not None)
    if reserved:
        raise XpError(f"launcher.sbatch: xp sets {', '.join(reserved)} itself, from the spec")
    values = {name: value for name, value in {**xp_options, **further}.items() if value is not None}
    return [
        *(f"--{name}={value}" for name, value in values.items()),
        "--requeue" if spec.requeue else "--no-requeue",
    ]


def _further(spec: LauncherSpec, gpus: int) -> dict[str, str]:
    """The options of `launcher.sbatch` for a job with this number of GPUs per node.

    A job without GPUs gets none of those that count by GPU. xp appends the number to a type of `gpus-per-node`.

    Raises:
        XpError: CONFIG if `gpus-per-node` has another number than the job needs, or two options set the memory.
    """
    further = dict(spec.sbatch or {})
    if {"mem-per-cpu", "mem-per-gpu"} <= further.keys():
        raise XpError("launcher.sbatch: mem-per-cpu and mem-per-gpu exclude each other; set one")
    if not gpus:
        return {name: value for name, value in further.items() if name not in BY_GPU}
    if "gpus-per-node" in further:
        kind, _, number = further["gpus-per-node"].rpartition(":")
        if not number.isdecimal():
            kind = further["gpus-per-node"]
            number = str(gpus)
        if int(number) != gpus:
            raise XpError(
                f"launcher.sbatch.gpus-per-node={further['gpus-per-node']}: a stage needs {gpus} GPUs per node; set"
                " the type of the GPU alone (h100), to which xp appends the number"
            )
        further["gpus-per-node"] = f"{kind}:{gpus}" if kind else str(gpus)
    return further


def batch_script(
    spec: LauncherSpec,
    context: Context,
    stage: Stage,
    job_spec: Path,
    argv: Sequence[str],
    spread: Spread | None,
) -> str:
    """The batch script for Slurm; all values from users are quoted but the lines of `launcher.setup`.

    Args:
        spec: the launcher.
        context: run and attempt of the stage.
        stage: the stage to run.
        job_spec: file of its job spec.
        argv: the command that submits the script.
        spread: start of the program on several nodes or in a container, for a comment.
    """
    starts = ""
    if spread is not None:
        command = shlex.join(by_srun(spread, str(job_spec), MAIN_NODE))
        starts = f"# It is started on the job's nodes by: {json.dumps(command)}\n"
    return BATCH.format(
        starts=starts,
        key=context.key(stage.name),
        setup=_setup(spec),
        submitted=json.dumps(shlex.join(argv)),
        code=shlex.quote(str(context.outputs / context.code)),
        python=shlex.quote(sys.executable),
        job_spec=shlex.quote(str(job_spec)),
        requeue=REQUEUE,
    )


def _setup(spec: LauncherSpec) -> str:
    return "".join(f"{line}\n" for line in spec.setup or ())


def array_script(spec: LauncherSpec, directory: Path, argv: Sequence[str]) -> str:
    """The batch script of a sweep's job array."""
    return ARRAY.format(
        setup=_setup(spec),
        submitted=json.dumps(shlex.join(argv)),
        directory=shlex.quote(str(directory)),
        python=shlex.quote(sys.executable),
        requeue=REQUEUE,
    )


def mounts(
    context: Context, file: str | None, environ: Mapping[str, str], *, has_files: bool
) -> list[str]:
    """Paths that a stage sees as they are: the outputs root, what holds its secrets, and the models' cache.

    Args:
        context: where the stage belongs.
        file: `launcher.secrets_file`.
        environ: of this process.
        has_files: whether xp writes a file or a Ray token for the stage. Without one there may be no directory, and a
            container does not start without a path that it is to mount.
    """
    paths = [str(context.outputs)]
    if file:
        paths.append(file)
    if has_files:
        paths.append(str(secrets_files.directory() / context.run_id))
    cache = environ.get("HF_HOME")
    if cache and Path(cache).is_dir():
        paths.append(cache)
    return paths


def check_container(spec: LauncherSpec, context: Context) -> None:
    """Raises XpError(RUNTIME) for a Slurm without pyxis, and for a path that no option can name."""
    for path in mounts(context, spec.secrets_file, os.environ, has_files=True):
        if any(separator in path for separator in SEPARATORS):
            raise XpError(
                f"launcher.container: {path} cannot be mounted: it has a comma or a colon",
                ExitCode.RUNTIME,
            )
    if spec.container is Container.PYXIS and "--container-image" not in ask(
        ["srun", "--help"], timeout_s=60.0
    ):
        reason = "this Slurm has no pyxis (its srun knows no --container-image)"
        fix = "set launcher.container=apptainer, or ask for the plugin"
        raise XpError(f"launcher.container=pyxis: {reason}; {fix}", ExitCode.RUNTIME)


def is_in_image(job: Job, container: Container | None) -> bool:
    """Returns whether a job runs in an image; otherwise it runs in the node's own Python."""
    return container is not None and job.runtime.image is not None


def srun_options(image: str, directories: list[str], root: str) -> tuple[str, ...]:
    """Options of pyxis (NVIDIA/pyxis, README, "Usage")."""
    return (
        f"--container-image={_of_enroot(image)}",
        f"--container-mounts={','.join(f'{path}:{path}' for path in directories)}",
        f"--container-workdir={root}",
        "--no-container-mount-home",
        "--container-env=PYTHONPATH",
    )


def apptainer_words(
    image: str, directories: list[str], root: str, *, has_gpus: bool
) -> tuple[str, ...]:
    """Command prefix of the program (Apptainer 1, user guide, "apptainer exec")."""
    source = image
    if not _is_file(image) and "://" not in image:
        source = f"docker://{image}"
    return (
        "apptainer",
        "exec",
        *(["--nv"] if has_gpus else []),
        "--no-home",
        "--bind",
        ",".join(directories),
        "--pwd",
        root,
        source,
    )


def _of_enroot(image: str) -> str:
    """An image's name in enroot's syntax: `#` after the registry."""
    registry, slash, rest = image.partition("/")
    is_registry = bool(slash) and ("." in registry or ":" in registry)
    if _is_file(image) or "#" in image or not is_registry:
        return image
    return f"{registry}#{rest}"


def _is_file(image: str) -> bool:
    return image.startswith(("/", ".")) or image.endswith((".sif", ".sqsh"))
