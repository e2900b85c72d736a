"""Provenance of a run: its code and its libraries."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from pathlib import Path

from xp import __version__
from xp.errors import XpError
from xp.job import Runtime
from xp.launchers.checkouts import git
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
    answer = git(root, "rev-parse", "--show-toplevel", "HEAD")
    if answer is None:
        return None, None
    top, _, commit = answer.partition("\n")
    if Path(top).resolve() != root.resolve():
        return None, None
    changes = git(root, "status", "--porcelain", "--untracked-files=no")
    return commit, None if changes is None else bool(changes)
