"""Chooses the interpreter for an environment's code, and its module path."""

from __future__ import annotations

import errno
import os
import shutil
import site
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Final

PYTHON_VARIABLE: Final = "XP_PYTHON"
"""Variable with the interpreter that started xp, if it is on this machine (launcher=local)."""


def candidates(chosen: str | None, environ: Mapping[str, str]) -> list[str]:
    """The chosen interpreter; without a choice this one, and then the one that started xp."""
    if chosen:
        return [chosen]
    return list(dict.fromkeys((sys.executable, environ.get(PYTHON_VARIABLE) or sys.executable)))


def path_for(python: str) -> str:
    """PYTHONPATH of a child; another interpreter gets xp and the user's modules, and has its own libraries."""
    if python == sys.executable:
        return os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    own = {os.path.realpath(place) for place in (*site.getsitepackages(), sysconfig.get_paths()["stdlib"])}
    entries = [os.path.realpath(entry or os.getcwd()) for entry in sys.path]
    entries = [entry for entry in entries if not any(Path(entry).is_relative_to(place) for place in own)]
    return os.pathsep.join(entry for entry in entries if not entry.endswith(".zip"))


def executable(python: str) -> str:
    """Path of an interpreter; raises FileNotFoundError, as starting it would."""
    path = os.path.expanduser(python)
    if shutil.which(path) is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    return path
