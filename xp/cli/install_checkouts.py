"""`python -m xp install` for trainers in the form of checkouts, cloned atomically at their pinned commits."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from xp.cli.install_programs import run, uv
from xp.errors import ExitCode, XpError
from xp.launchers.checkouts import commit_of, differing
from xp.launchers.preflight import probe
from xp.lib.atomic import write_atomically
from xp.planning.stages import runtime_checkouts, trainer_runtime
from xp.runtimes import PLACES, WHOLE, Checkout, Checkouts, added_to_image, directory, installed_checkouts
from xp.spec import RunSpec

PYTHON_NAMES = ("python3.12", "python3", "python")


def install_sources(spec: RunSpec, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Makes the checkouts of a spec's trainer, unless variables name all of them already.

    Args:
        spec: the run, which determines addresses and commits.
        environ: environment with variables that name the user's own checkouts.

    Returns:
        Variable -> directory of each checkout; empty if the trainer is installed as packages.

    Raises:
        XpError: RUNTIME if git or uv fails, or the user's own checkout is at another commit.
    """
    if (sources := runtime_checkouts(spec)) is None:
        return {}
    own = {one.variable: environ[one.variable] for one in sources.checkouts if environ.get(one.variable)}
    if wrong := list(differing(spec.backend.commits, environ)):
        raise XpError("\n".join(wrong), ExitCode.RUNTIME)
    if len(own) == len(sources.checkouts):
        return own
    return {**make_checkouts(sources), **own}


def make_checkouts(sources: Checkouts) -> dict[str, str]:
    """Makes missing checkouts; returns variable -> directory. A second process waits for the first."""
    from filelock import FileLock

    place = directory() / sources.key
    place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with FileLock(place.with_name(f".{sources.key}.lock")):
        if there := installed_checkouts(sources.key):
            return there
        if place.exists():  # of an interrupted installation
            shutil.rmtree(place)
        for one in sources.checkouts:
            _clone(one, place)
        for one in sources.checkouts:
            _patch(one, place)
        if sources.extra is not None:
            _sync(place / sources.checkouts[0].folder, sources.extra, sources.added)
        write_atomically(place / PLACES, json.dumps({one.variable: one.folder for one in sources.checkouts}) + "\n")
        (place / WHOLE).write_text(f"{sources.key}\n", encoding="utf-8")
        return installed_checkouts(sources.key)


def interpreter_for(spec: RunSpec, asked: str | None) -> Path:
    """Chooses the Python of a trainer whose packages come with an image, once for all runs with these checkouts.

    Args:
        spec: the run.
        asked: the user's interpreter; None: the first on PATH that has the trainer's packages.

    Raises:
        XpError: RUNTIME if it lacks a package, or no Python on PATH has all of them.
    """
    from xp.planning.plan import build_plan

    stage = next(stage for stage in build_plan(spec, "install").stages if stage.name == "train")
    sources = runtime_checkouts(spec)
    assert sources is not None
    candidates = [asked] if asked is not None else _on_path()
    try:
        return python_above(candidates, stage.job.runtime.packages, directory() / sources.key)
    except XpError as error:
        raise XpError(
            f"install: the checkouts are made, and no Python for them was found: {error}\n"
            f"start it in the image that has them, {trainer_runtime(spec, ()).image}, or name one that does:"
            " --python PATH",
            ExitCode.RUNTIME,
        ) from None


def python_above(candidates: Sequence[str], packages: Sequence[str], place: Path) -> Path:
    """Makes `place/bin/python`: an environment on the first candidate with the packages, with xp's additions.

    Args:
        candidates: interpreters, the preferred one first.
        packages: modules that must be importable.
        place: directory of the checkouts.

    Raises:
        XpError: RUNTIME if each candidate lacks a package that xp does not add.
    """
    added = added_to_image()
    names = {line.partition("==")[0] for line in added}
    program, reasons = place / "bin" / "python", []
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
            run([python, "-m", "venv", "--system-site-packages", "--without-pip", str(place)])
            run([python, "-m", "pip", "--python", str(program), "install", *added])
            return program
        reasons.append(f"{python} lacks {', '.join(absent)}")
    raise XpError("; ".join(reasons) or "PATH has none", ExitCode.RUNTIME)


def _is_virtual(python: str) -> bool:
    """Returns whether an interpreter is a virtual environment's, whose packages a new one on it would not see."""
    ask = "import sys; sys.exit(sys.prefix == sys.base_prefix)"
    return subprocess.run([python, "-c", ask], check=False).returncode == 0


def _on_path() -> list[str]:
    places = os.environ.get("PATH", "").split(os.pathsep)
    found = [shutil.which(name, path=place) for name in PYTHON_NAMES for place in places if place]
    return list(dict.fromkeys(os.path.abspath(one) for one in found if one is not None))


def _lacks(python: str, packages: Sequence[str]) -> list[str]:
    try:
        found, _, _ = probe(python, packages, ())
    except XpError:
        return ["a working interpreter"]
    return [name for name in packages if not found[name]]


def _clone(one: Checkout, place: Path) -> None:
    """Clones one commit without history; with history if the server refuses single commits."""
    checkout = place / one.folder
    git = ["git", "-C", str(checkout)]
    run(["git", "init", "--quiet", str(checkout)])
    run([*git, "remote", "add", "origin", one.address])
    shallow = [*git, "fetch", "--depth", "1", "origin", one.commit]
    if subprocess.run(shallow, check=False).returncode != 0:
        run([*git, "fetch", "origin", "--tags"])
    run([*git, "checkout", "--quiet", "--detach", one.commit])
    there = commit_of(checkout)
    if there is None or not there.startswith(one.commit):
        raise XpError(f"install: {checkout} is at {there}, and {one.commit} is wanted", ExitCode.RUNTIME)


def _patch(one: Checkout, place: Path) -> None:
    for name in one.patches:
        if (file := place / name).is_file():
            run(["git", "-C", str(place / one.folder), "apply", "--3way", str(file)])


def _sync(checkout: Path, extra: str, added: Sequence[str]) -> None:
    """Installs the packages of the checkout's uv.lock, and xp's additional ones, into its `.venv`."""
    run([*uv(), "sync", "--frozen", "--extra", extra, "--project", str(checkout)])
    if added:
        run([*uv(), "pip", "install", "--python", str(checkout / ".venv" / "bin" / "python"), *added])
