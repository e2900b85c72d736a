"""`python -m xp install`: installs a spec's trainer atomically: packages of a lock, or checkouts at their commits."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from xp.composition import compose
from xp.errors import ExitCode, XpError
from xp.execution.launchers.preflight import check_commits, commit_of, probe
from xp.fields.shared import is_on_cpu
from xp.lib.atomic import write_atomically, write_json
from xp.lib.packages import IS_CLONE
from xp.lib.text import counted
from xp.planning.runtime import runtime_checkouts, runtime_lock, trainer_runtime
from xp.planning.runtimes import (
    AFTER_LOCK,
    LOCKS,
    PLACES,
    WHOLE,
    Checkout,
    Checkouts,
    RuntimeLock,
    added_to_image,
    directory,
    installed_checkouts,
)
from xp.spec import BackendName, LauncherName, RunSpec

KEPT = ", and downloaded packages are kept in uv's cache"
SKYRL_ON_A_CPU = (
    "python -m venv .venv-skyrl",
    ".venv-skyrl/bin/pip install torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu",
    *(
        f".venv-skyrl/bin/pip install --no-deps --ignore-requires-python --requirement {shlex.quote(str(file))}"
        for file in (
            LOCKS.parent / "requirements/skyrl.lock",
            LOCKS.parent / "requirements/skyrl-wheels.lock",
        )
    ),
)


def install(spec: RunSpec, python: str | None = None) -> Path | None:
    """Installs the environment of a spec's trainer, unless it exists.

    Args:
        spec: the run, which determines the lock.
        python: interpreter to build on. None means one of the lock's versions, which uv finds or downloads.

    Returns:
        The environment's interpreter; None if the spec names its own, or runs in xp's.

    Raises:
        XpError: RUNTIME if uv or git is missing or failed; no partial environment is left.
    """
    sources = install_sources(spec)
    if sources:
        for variable, target in sources.items():
            print(f"{variable}={target}")
        if spec.backend.runtime.python is not None:
            return None
        return interpreter_for(spec, python)
    lock = runtime_lock(spec)
    if lock is None:
        return None
    return install_lock(lock, python)


def install_lock(lock: RuntimeLock, python: str | None) -> Path:
    """Installs one lock's environment; a second process waits for the first."""
    with _unfinished(lock.key) as target:
        if target is None:
            return directory() / lock.key / "bin" / "python"
        program = uv()
        run(
            [
                *program,
                "venv",
                "--quiet",
                "--python",
                python or _python(program, lock.pythons),
                str(target),
            ],
            KEPT,
        )
        pip = [*program, "pip", "install", "--python", str(target / "bin" / "python"), "--no-deps"]
        for file in lock.files:
            hint = KEPT
            if file.name == AFTER_LOCK:
                hint += f"; backend.attention=sdpa does without {file.name}"
            hashes = ["--require-hashes"] if "--hash" in file.read_text(encoding="utf-8") else []
            run([*pip, *hashes, "--requirements", str(file)], hint)
        return target / "bin" / "python"


@contextmanager
def _unfinished(key: str) -> Iterator[Path | None]:
    """Locks and empties the directory of a key, and marks it as whole at the end. None means that it is whole
    already."""
    from filelock import FileLock

    target = directory() / key
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with FileLock(target.with_name(f".{key}.lock")):
        if (target / WHOLE).is_file():
            yield None
            return
        if target.exists():  # of an interrupted installation
            shutil.rmtree(target)
        yield target
        (target / WHOLE).write_text(f"{key}\n", encoding="utf-8")


def why_not(spec: RunSpec) -> str:
    """Reason why `install` has nothing to do for a spec."""
    runtime = spec.backend.runtime
    if runtime.python is not None:
        return f"the job's Python is backend.runtime.python={runtime.python}"
    if is_on_cpu(spec):
        gpus = f"for GPUs, name them: python -m xp install backend={spec.backend.name} hardware=8xH100 (or hardware=auto)"
        if spec.backend.name != BackendName.SKYRL:
            return f"on hardware=cpu the job runs in xp's own Python; {gpus}"
        steps = ("make .venv-skyrl/.done",) if IS_CLONE else SKYRL_ON_A_CPU
        use_it = "then add to a command: backend.runtime.python=.venv-skyrl/bin/python"
        return "\n  ".join(
            (f"SkyRL on hardware=cpu has a Python of its own; {gpus}; for a CPU:", *steps, use_it)
        )
    strategy = spec.backend.parallel.strategy
    return f"backend={spec.backend.name} with strategy={strategy} has no lock here: see its page in docs/backends"


def cannot_run_here(spec: RunSpec) -> str | None:
    """Reason why a run of this spec does not use this machine's environments. None means that it uses them."""
    from xp.spec.hardware import visible_gpus

    if isinstance(spec.launcher.name, LauncherName) and spec.launcher.name.is_elsewhere:
        return f"launcher={spec.launcher.name} makes the job's Python where it runs"
    if spec.launcher.name is LauncherName.LOCAL and not is_on_cpu(spec):
        num_gpus = spec.hardware.accelerators_per_node
        shown = len(visible_gpus())
        if shown < num_gpus:
            return (
                f"the run needs {num_gpus} x {spec.hardware.accelerator}"
                f" and this machine shows {counted(shown, 'GPU')}"
            )
    return None


def _python(program: list[str], versions: Sequence[str]) -> str:
    """The first of these versions on this machine, else the first of all, which uv then downloads."""
    find = [*program, "python", "find", "--no-python-downloads"]
    there = (
        version
        for version in versions
        if subprocess.run([*find, version], capture_output=True, check=False).returncode == 0
    )
    return next(there, versions[0])


def install_command(args: Namespace) -> int:
    """Installs the Python environment of the spec's trainer."""
    spec = compose(args.overrides, args.config_dir)
    if args.for_run:
        reason = cannot_run_here(spec)
        if reason:
            print(f"nothing installed: {reason}")
            return ExitCode.OK
    python = install(spec, args.python)
    print(f"nothing to install: {why_not(spec)}" if python is None else f"installed: {python}")
    return ExitCode.OK


def install_sources(spec: RunSpec) -> dict[str, str]:
    """Makes the checkouts of a spec's trainer, unless variables of this process name all of them already.

    Args:
        spec: the run, which determines addresses and commits.

    Returns:
        Variable -> directory of each checkout; empty if the trainer is installed as packages.

    Raises:
        XpError: RUNTIME if git or uv fails, or the user's own checkout is at another commit.
    """
    sources = runtime_checkouts(spec)
    if sources is None:
        return {}
    variables = [checkout.variable for checkout in sources.checkouts]
    checkouts = {name: os.environ[name] for name in variables if os.environ.get(name)}
    check_commits(spec.backend.commits)
    if len(checkouts) == len(sources.checkouts):
        return checkouts
    return {**make_checkouts(sources), **checkouts}


def make_checkouts(sources: Checkouts) -> dict[str, str]:
    """Makes missing checkouts; returns variable -> directory. A second process waits for the first."""
    with _unfinished(sources.key) as target:
        if target is not None:
            for checkout in sources.checkouts:
                _clone(checkout, target)
            for checkout in sources.checkouts:
                git = ["git", "-C", str(target / checkout.folder)]
                for file in (target / name for name in checkout.patches):
                    if file.is_file():
                        run([*git, "apply", "--3way", str(file)])
            folders = {checkout.variable: checkout.folder for checkout in sources.checkouts}
            write_json(target / PLACES, folders)
    return installed_checkouts(sources.key)


def interpreter_for(spec: RunSpec, python: str | None) -> Path:
    """Chooses the Python of a trainer whose packages come with an image, once for all runs with these checkouts.

    Args:
        spec: the run.
        python: the user's interpreter. None means the first on PATH that has the trainer's packages.

    Raises:
        XpError: RUNTIME if it lacks a package, or no Python on PATH has all of them.
    """
    from xp.planning.plan import build_plan

    stage = next(stage for stage in build_plan(spec, "install").stages if stage.name == "train")
    sources = runtime_checkouts(spec)
    assert sources is not None
    candidates = [python] if python is not None else _on_path()
    try:
        return python_above(candidates, stage.job.runtime.packages, directory() / sources.key)
    except XpError as error:
        raise XpError(
            f"install: the checkouts are made, and no Python for them was found: {error}\n"
            f"start it in the image that has them, {trainer_runtime(spec, ()).image}, or name one that does:"
            " --python PATH",
            ExitCode.RUNTIME,
        ) from None


def python_above(candidates: Sequence[str], packages: Sequence[str], target: Path) -> Path:
    """Makes `target/bin/python`: an environment on the first candidate with the packages, with xp's additions.

    Args:
        candidates: interpreters, the preferred one first.
        packages: modules that must be importable.
        target: directory of the checkouts.

    Raises:
        XpError: RUNTIME if each candidate lacks a package that xp does not add.
    """
    added = added_to_image()
    names = {line.partition("==")[0] for line in added}
    program = target / "bin" / "python"
    reasons = []
    for python in candidates:
        absent = _lacks(python, packages)
        if not absent:
            program.parent.mkdir(exist_ok=True, parents=True)
            # With a link to a virtual environment's interpreter, its packages would be missing.
            write_atomically(program, f'#!/bin/sh\nexec {shlex.quote(python)} "$@"\n')
            program.chmod(0o755)
            return program
        if names.issuperset(absent) and not _is_virtual(python):
            program.unlink(missing_ok=True)
            run([python, "-m", "venv", "--system-site-packages", "--without-pip", str(target)])
            run([python, "-m", "pip", "--python", str(program), "install", *added])
            return program
        reasons.append(f"{python} lacks {', '.join(absent)}")
    raise XpError("; ".join(reasons) or "PATH has none", ExitCode.RUNTIME)


def _is_virtual(python: str) -> bool:
    """Returns whether an interpreter is a virtual environment's, whose packages a new one on it would not see."""
    ask = "import sys; sys.exit(sys.prefix == sys.base_prefix)"
    return subprocess.run([python, "-c", ask], check=False).returncode == 0


def _on_path() -> list[str]:
    folders = os.environ.get("PATH", "").split(os.pathsep)
    names = ("python3.12", "python3", "python")
    paths = [shutil.which(name, path=folder) for name in names for folder in folders if folder]
    return list(dict.fromkeys(os.path.abspath(path) for path in paths if path is not None))


def _lacks(python: str, packages: Sequence[str]) -> list[str]:
    try:
        versions, _, _ = probe(python, packages, ())
    except XpError:
        return ["a working interpreter"]
    return [name for name in packages if not versions[name]]


def _clone(source: Checkout, folder: Path) -> None:
    """Clones one commit without history; with history if the server refuses single commits."""
    checkout = folder / source.folder
    git = ["git", "-C", str(checkout)]
    run(["git", "init", "--quiet", str(checkout)])
    run([*git, "remote", "add", "origin", source.address])
    shallow = [*git, "fetch", "--depth", "1", "origin", source.commit]
    if subprocess.run(shallow, check=False).returncode != 0:
        run([*git, "fetch", "origin", "--tags"])
    run([*git, "checkout", "--quiet", "--detach", source.commit])
    there = commit_of(checkout)
    if there is None or not there.startswith(source.commit):
        raise XpError(
            f"install: {checkout} is at {there}, expected {source.commit}", ExitCode.RUNTIME
        )


def uv() -> list[str]:
    """The command that starts uv; raises XpError(RUNTIME) where there is none."""
    if find_spec("uv") is not None:
        return [sys.executable, "-m", "uv"]
    program = shutil.which("uv")
    if program is not None:
        return [program]
    raise XpError(f"install needs uv: {sys.executable} -m pip install uv", ExitCode.RUNTIME)


def run(command: list[str], more: str = "") -> None:
    """Runs a program, which shows its own progress.

    Args:
        command: its words.
        more: end of the message where it fails.

    Raises:
        XpError: RUNTIME, it cannot be started, or failed.
    """
    try:
        subprocess.run(command, check=True)
    except (OSError, subprocess.CalledProcessError):
        raise XpError(
            f"install stopped at: {shlex.join(command)}\nthe reason is above; the same command starts again{more}",
            ExitCode.RUNTIME,
        ) from None
