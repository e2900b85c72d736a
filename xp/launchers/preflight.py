"""Whether this machine can run a job: found out before anything is created, with what to do if not."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from xp.errors import ExitCode, XpError
from xp.job import Job, Runtime, Stage

_PROBE = """
import importlib.metadata, importlib.util, json, sys
def version(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
modules, packages = json.loads(sys.argv[1])
found = {name: importlib.util.find_spec(name) is not None for name in modules}
print(json.dumps([found, {name: version(name) for name in packages}, "%d.%d.%d" % sys.version_info[:3]]))
"""


def check_machine(stage: Stage) -> None:
    """Raise XpError(RUNTIME) for a missing interpreter, module or accelerator."""
    runtime = stage.job.runtime
    python = interpreter(runtime)
    found, _, _ = probe(python, tuple({name.partition(".")[0] for name in runtime.packages}), ())
    if missing := sorted(name for name, is_there in found.items() if not is_there):
        how = f"{python} -m pip install {' '.join(missing)}"
        raise XpError(
            f"stage {stage.name} needs {', '.join(missing)}, which {python} cannot import; install: {how}",
            ExitCode.RUNTIME,
        )
    _check_accelerators(stage.name, stage.job)


def interpreter(runtime: Runtime) -> str:
    """The Python that `python` in a job's argv stands for."""
    if runtime.python is not None:
        path = shutil.which(os.path.expanduser(runtime.python))
        if path is None:
            raise XpError(
                f"backend.runtime.python: {runtime.python} is no executable on this machine", ExitCode.RUNTIME
            )
        return os.path.abspath(path)
    checkout = project(runtime)
    if checkout is not None and (checkout / ".venv/bin/python").exists():
        return str(checkout / ".venv/bin/python")
    return sys.executable


def project(runtime: Runtime) -> Path | None:
    """The checkout that the runtime names, if it names one."""
    if runtime.project is None:
        return None
    value = os.environ.get(runtime.project, "")
    if not value or not Path(value).is_dir():
        state = f"is {value!r}, which is no directory" if value else "is not set"
        raise XpError(
            f"backend.runtime needs a checkout and {runtime.project} {state};"
            f" set it with `export {runtime.project}=/path/to/checkout`",
            ExitCode.RUNTIME,
        )
    return Path(value).absolute()


def probe(
    python: str, modules: Sequence[str], packages: Sequence[str]
) -> tuple[Mapping[str, bool], Mapping[str, str | None], str]:
    """Ask an interpreter, without importing anything: which modules it can find, its versions of packages, its own."""
    question = json.dumps([list(modules), list(packages)])
    try:
        # -P: what lies in the current directory is not what the job will find.
        run = subprocess.run(
            [python, "-P", "-c", _PROBE, question] if python == sys.executable else [python, "-c", _PROBE, question],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        found, versions, version = json.loads(run.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise XpError(f"{python} does not work as an interpreter: {error}", ExitCode.RUNTIME) from error
    return found, versions, version


def _check_accelerators(stage: str, job: Job) -> None:
    wanted = job.resources.num_accelerators
    if job.resources.accelerator == "cpu" or wanted == 0:
        return
    there = len(visible_gpus())
    if there < wanted or job.resources.num_nodes > 1:
        where = f"{job.resources.num_nodes} nodes" if job.resources.num_nodes > 1 else "a machine"
        raise XpError(
            f"stage {stage} needs {wanted} x {job.resources.accelerator} and this machine shows {there} to nvidia-smi;"
            f" the plan is fine: start it on {where} that has them, or choose a smaller hardware option",
            ExitCode.RUNTIME,
        )


def visible_gpus() -> list[str]:
    """Indices of the GPUs that a job may use here."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    try:
        run = subprocess.run(
            [program, "--query-gpu=index", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return []
    indices = [line.strip() for line in run.stdout.splitlines() if line.strip()]
    allowed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if allowed is None:
        return indices
    return [part.strip() for part in allowed.split(",") if part.strip()]
