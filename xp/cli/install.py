"""`python -m xp install`: installs the Python environment of a spec's trainer from its lock with uv, atomically."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from xp.cli.install_checkouts import install_sources, interpreter_for
from xp.cli.install_programs import run, uv
from xp.lib.text import counted
from xp.planning.stages import runtime_lock
from xp.runtimes import AFTER_LOCK, WHOLE, RuntimeLock, directory, installed
from xp.spec import LauncherName, RunSpec

PYTHONS = ("3.12", "3.11")
"""Python versions that the locks are resolved for, the preferred one first."""
KEPT = ", and downloaded packages are kept in uv's cache"


def install(spec: RunSpec, python: str | None = None) -> Path | None:
    """Installs the environment of a spec's trainer, unless it exists.

    Args:
        spec: the run, which determines the lock.
        python: interpreter to build on; None: one of `PYTHONS`, which uv finds or downloads.

    Returns:
        The environment's interpreter; None if the spec names its own, or runs in xp's.

    Raises:
        XpError: RUNTIME if uv or git is missing or failed; no partial environment is left.
    """
    if sources := install_sources(spec):
        for variable, place in sources.items():
            print(f"{variable}={place}")
        return _python_of_sources(spec, Path(sources[str(spec.backend.runtime.project_env)]), python)
    lock = runtime_lock(spec)
    return None if lock is None else install_lock(lock, python)


def _python_of_sources(spec: RunSpec, checkout: Path, python: str | None) -> Path | None:
    """Interpreter of the checkout's `.venv`, else one with the trainer's packages; None if the spec names its own."""
    if spec.backend.runtime.python is not None:
        return None
    own = checkout / ".venv" / "bin" / "python"
    return own if own.exists() and python is None else interpreter_for(spec, python)


def install_lock(lock: RuntimeLock, python: str | None = None) -> Path:
    """Installs one lock's environment; a second process waits for the first."""
    from filelock import FileLock

    if (there := installed(lock.key)) is not None:
        return there
    place = directory() / lock.key
    place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with FileLock(place.with_name(f".{lock.key}.lock")):
        if (there := installed(lock.key)) is not None:
            return there
        if place.exists():  # of an interrupted installation
            shutil.rmtree(place)
        _build(lock, place, python)
        (place / WHOLE).write_text(f"{lock.key}\n", encoding="utf-8")
    return place / "bin" / "python"


def why_not(spec: RunSpec) -> str:
    """Reason why `install` has nothing to do for a spec."""
    runtime = spec.backend.runtime
    if runtime.python is not None:
        return f"the job's Python is backend.runtime.python={runtime.python}"
    if spec.hardware.accelerator == "cpu":
        return "on hardware=cpu the job runs in xp's own Python (make setup), or in .venv-skyrl (make rehearse-skyrl)"
    strategy = spec.backend.parallel.strategy
    return f"backend={spec.backend.name} with strategy={strategy} has no lock here: see its page in docs/backends"


def cannot_run_here(spec: RunSpec) -> str | None:
    """Reason why a run of this spec does not use this machine's environments; None: it uses them."""
    from xp.launchers.node.gpus import visible_gpus

    if isinstance(spec.launcher.name, LauncherName) and spec.launcher.name.is_elsewhere:
        return f"launcher={spec.launcher.name} makes the job's Python where it runs"
    wanted = 0 if spec.hardware.accelerator == "cpu" else spec.hardware.accelerators_per_node
    if spec.launcher.name is LauncherName.LOCAL and len(there := visible_gpus()) < wanted:
        shown = counted(len(there), "GPU")
        return f"the run needs {wanted} x {spec.hardware.accelerator} and this machine shows {shown}"
    return None


def _build(lock: RuntimeLock, place: Path, python: str | None) -> None:
    program = uv()
    run([*program, "venv", "--quiet", "--python", python or _python(program), str(place)], KEPT)
    pip = [*program, "pip", "install", "--python", str(place / "bin" / "python"), "--no-deps"]
    for file in lock.files:
        hashes = ["--require-hashes"] if "--hash" in file.read_text(encoding="utf-8") else []
        without = f"; backend.attention=sdpa does without {file.name}" if file.name == AFTER_LOCK else ""
        run([*pip, *hashes, "--requirements", str(file)], f"{KEPT}{without}")


def _python(program: list[str]) -> str:
    """The first of `PYTHONS` on this machine, else the first of all, which uv then downloads."""
    find = [*program, "python", "find", "--no-python-downloads"]
    there = (one for one in PYTHONS if subprocess.run([*find, one], capture_output=True, check=False).returncode == 0)
    return next(there, PYTHONS[0])
