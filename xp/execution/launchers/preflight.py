"""Checks that this machine can run a job, before anything is created; faults say how to fix them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from xp.envs.pythons import HASH_SEED
from xp.errors import ExitCode, XpError
from xp.lib.packages import install_command
from xp.planning.engine_arguments import READS_PICTURES
from xp.planning.job import Runtime, Stage
from xp.planning.runtimes import installed, installed_checkouts

_PROBE = """
import importlib.metadata, importlib.util, json, pathlib, sys
def has(name):
    top, *inner = name.split(".")
    found = importlib.util.find_spec(top)
    if found is None or not inner:
        return found is not None
    places = [pathlib.Path(folder, *inner) for folder in found.submodule_search_locations or ()]
    return any(place.is_dir() or any(place.parent.glob(place.name + ".*")) for place in places)
def version(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
modules, packages = json.loads(sys.argv[1])
is_there = {name: has(name) for name in modules}
print(json.dumps([is_there, {name: version(name) for name in packages}, "%d.%d.%d" % sys.version_info[:3]]))
"""


def check_machine(stages: Sequence[Stage]) -> None:
    """Raises XpError(RUNTIME) for a missing interpreter or module; each interpreter is started once."""
    by_python: dict[str, dict[str, str]] = {}
    for stage in stages:
        modules = by_python.setdefault(interpreter(stage.job.runtime), {})
        for name in stage.job.runtime.packages:
            modules.setdefault(name, stage.name)
    for python, modules in by_python.items():
        is_there, _, _ = probe(python, tuple(modules), ())
        missing = [module for module in modules if not is_there[module]]
        has_no_server = READS_PICTURES in missing
        if has_no_server:
            missing.remove(READS_PICTURES)
        if has_no_server and "vllm" not in missing:
            raise XpError(
                f"stage {modules[READS_PICTURES]} needs a vLLM whose server takes tokens with images (0.30 or 0.31), and"
                f" that of {python} has none; set either backend.runtime.python=PATH of a Python with it, or"
                " backend.engine.placement=colocated and backend.engine.accelerators=null, or model.images=null",
                ExitCode.RUNTIME,
            )
        if missing:
            name = modules[missing[0]]
            install = next(stage.job.runtime.install for stage in stages if stage.name == name)
            if install is None and python == sys.executable:
                install = f"install: {install_command(*missing)}"
            if install is None:
                install = f"install: {python} -m pip install {' '.join(missing)}"
            raise XpError(
                f"stage {name} needs {', '.join(missing)}, which {python} cannot import; {install}",
                ExitCode.RUNTIME,
            )


def interpreter(runtime: Runtime) -> str:
    """Path of the interpreter for `python` in a job's argv."""
    if runtime.python is not None:
        path = shutil.which(os.path.expanduser(runtime.python))
        if path is None:
            raise XpError(
                f"backend.runtime.python: {runtime.python} is not an executable on this machine",
                ExitCode.RUNTIME,
            )
        return os.path.abspath(path)
    checkout = project(runtime)
    if checkout is not None and (checkout / ".venv/bin/python").exists():
        return str(checkout / ".venv/bin/python")
    for key in (runtime.lock, runtime.checkouts):
        python = None if key is None else installed(key)
        if python is not None and python.exists():
            return str(python)
    return sys.executable


def with_interpreter(argv: Sequence[str], runtime: Runtime) -> list[str]:
    """A job's command, with the path of its interpreter for `python` as the first word."""
    program, *rest = argv
    if program == "python":
        program = interpreter(runtime)
    return [program, *rest]


def project(runtime: Runtime) -> Path | None:
    """Path of the runtime's checkout; None if it has none."""
    if runtime.project is None:
        return None
    value = os.environ.get(runtime.project) or checkouts(runtime).get(runtime.project, "")
    if not value or not Path(value).is_dir():
        state = "is not set"
        if value:
            state = f"is {value!r}, which is not a directory"
        fix = f"set it with `export {runtime.project}=/path/to/checkout`"
        if runtime.install and runtime.checkouts:
            fix += f", or make one: {runtime.install}"
        raise XpError(
            f"backend.runtime needs a checkout and {runtime.project} {state}; {fix}",
            ExitCode.RUNTIME,
        )
    return Path(value).absolute()


def checkouts(runtime: Runtime) -> dict[str, str]:
    """Variable -> path of checkouts that `install` made, for variables that are not set."""
    folders = installed_checkouts(runtime.checkouts)
    return {
        variable: folder for variable, folder in folders.items() if not os.environ.get(variable)
    }


def python_variables(runtime: Runtime, code: Path, path: str) -> dict[str, str]:
    """Variables by which a job finds its code: the run's copy, its checkout, and directories of the user's.

    Args:
        runtime: the job's Python; one that the user names does not get the user's directories.
        code: parent directory of the run's copy of xp.
        path: the user's PYTHONPATH.
    """
    paths = [str(code)]
    checkout = project(runtime)
    if checkout is not None:
        paths.append(str(checkout))
    if runtime.python is None:
        paths += [os.path.abspath(part) for part in path.split(os.pathsep) if part]
    return {
        **checkouts(runtime),
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONUNBUFFERED": "1",
        **HASH_SEED,
    }


def has_module(python: str, name: str) -> bool:
    """Returns whether an interpreter is there and has a module, which may be in a package."""
    try:
        is_there, _, _ = probe(python, (name,), (), directory="/")
    except XpError:
        return False
    return is_there[name]


def probe(
    python: str, modules: Sequence[str], packages: Sequence[str], *, directory: str | None = None
) -> tuple[Mapping[str, bool], Mapping[str, str | None], str]:
    """Returns which modules an interpreter can find, its packages' versions, and its own version; imports nothing.

    Args:
        python: path of the interpreter.
        modules: names of modules, also within packages.
        packages: names of distributions.
        directory: where it starts, whose modules an old Python finds. None means the current directory.
    """
    question = json.dumps([list(modules), list(packages)])
    try:
        # -P: the job does not find modules of the current directory.
        run = subprocess.run(
            [python, *(["-P"] if python == sys.executable else []), "-c", _PROBE, question],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
            cwd=directory,
        )
        is_there, versions, version = json.loads(run.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise XpError(
            f"{python} does not work as an interpreter: {error}", ExitCode.RUNTIME
        ) from error
    return is_there, versions, version


def commit_of(checkout: Path) -> str | None:
    """The commit of a checkout; None if git does not report it."""
    return git(checkout, "rev-parse", "HEAD")


def git(directory: Path, *words: str) -> str | None:
    """Output of git in a checkout; None if it fails."""
    command = ["git", "--no-optional-locks", "-C", str(directory), *words]
    try:
        return subprocess.run(
            command, capture_output=True, text=True, timeout=30, check=True
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def check_commits(commits: Mapping[str, str], environ: Mapping[str, str] = os.environ) -> None:
    """Raises XpError(RUNTIME) for checkouts that are not at their pinned commits; arguments as of `differing`."""
    differences = list(differing(commits, environ))
    if differences:
        raise XpError("\n".join(differences), ExitCode.RUNTIME)


def differing(commits: Mapping[str, str], environ: Mapping[str, str] = os.environ) -> Iterator[str]:
    """One sentence for each checkout that is not at its pinned commit: found, expected, and remedies.

    Args:
        commits: variable that names a checkout -> its pinned commit (`backend.commits`).
        environ: environment with the variables; variables that are not set are not checked.
    """
    for variable, pin in commits.items():
        checkout = environ.get(variable)
        there = None
        if checkout:
            there = commit_of(Path(checkout))
        if there is not None and not there.startswith(pin):
            yield (
                f"{variable}: {checkout} is at {there[:9]}; xp's rendering was tested with {pin[:9]};"
                f" git -C {checkout} checkout {pin}, or backend.commits.{variable}={there} takes it as it is"
            )
