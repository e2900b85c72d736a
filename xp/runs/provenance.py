"""Provenance of a run: its code and its libraries."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Sequence
from pathlib import Path

from xp import __version__
from xp.errors import XpError
from xp.job import Runtime
from xp.launchers.files import PACKAGE
from xp.launchers.preflight import interpreter, probe
from xp.runs.record import Provenance


def provenance(packages: Sequence[str], runtime: Runtime) -> Provenance:
    """Finds the commit of xp's checkout, and the packages' versions in the job's interpreter."""
    commit, is_dirty = checkout_state(PACKAGE.parent)
    try:
        _, versions, python = probe(interpreter(runtime), (), tuple(packages))
    except XpError:  # an interpreter on a cluster, which preflight does not look for here
        versions, python = {}, platform.python_version()
    return Provenance(__version__, python, commit, is_dirty, dict(versions))


def checkout_state(root: Path) -> tuple[str | None, bool | None]:
    """Commit of a checkout, and whether tracked files differ from it; (None, None) if `root` is not a checkout's
    top."""
    answer = _git(root, "rev-parse", "--show-toplevel", "HEAD")
    if answer is None:
        return None, None
    top, _, commit = answer.partition("\n")
    if Path(top).resolve() != root.resolve():
        return None, None
    changes = _git(root, "status", "--porcelain", "--untracked-files=no")
    return commit.strip(), None if changes is None else bool(changes.strip())


def _git(root: Path, *arguments: str) -> str | None:
    try:
        run = subprocess.run(
            ["git", "--no-optional-locks", "-C", str(root), *arguments],
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return run.stdout
