"""The interpreter of a process that runs what others wrote, its module path and its limits."""

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


HASH_SEED: Final = {"PYTHONHASHSEED": "0"}
"""Variable of every process that plays environments: tasks that depend on hash() or the order of a set are the same."""


def candidates(chosen: str | None, environ: Mapping[str, str]) -> list[str]:
    """The chosen interpreter; without a choice this one, and then the one that started xp."""
    if chosen:
        return [chosen]
    return list(dict.fromkeys((sys.executable, environ.get(PYTHON_VARIABLE) or sys.executable)))


def path_for(python: str) -> str:
    """PYTHONPATH of a child; another interpreter gets xp and the user's modules, and has its own libraries."""
    if python == sys.executable:
        return os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    libraries = {
        os.path.realpath(place)
        for place in (*site.getsitepackages(), sysconfig.get_paths()["stdlib"])
    }
    entries = [os.path.realpath(entry or os.getcwd()) for entry in sys.path]
    entries = [
        entry
        for entry in entries
        if not any(Path(entry).is_relative_to(place) for place in libraries)
    ]
    return os.pathsep.join(entry for entry in entries if not entry.endswith(".zip"))


def executable(python: str) -> str:
    """Path of an interpreter; raises FileNotFoundError, as starting it would."""
    path = os.path.expanduser(python)
    if shutil.which(path) is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    return path


USUAL_STACK: Final = 8 * 2**20
"""Bytes of a thread's stack; where `ulimit -s` is unlimited, glibc takes less."""


def bound_memory(memory_gb: float | None) -> None:
    """Limits the private memory of this process and of each child process, in GB; larger allocations fail.

    In Python, an allocation then raises MemoryError. Mapped files and libraries do not count.
    """
    if memory_gb is not None and sys.platform == "linux":
        import resource

        size = int(memory_gb * 1e9)
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        if hard != resource.RLIM_INFINITY:
            size = min(size, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (size, size))


def stacks_within(memory_gb: float) -> int:
    """Returns how many threads' stacks `memory_gb` has room for, at least one.

    A whole stack counts for `bound_memory` (`ulimit -s`, 8 MB as a rule), however little of it is used.
    """
    size = USUAL_STACK
    if sys.platform == "linux":
        import resource

        soft, _ = resource.getrlimit(resource.RLIMIT_STACK)
        if soft != resource.RLIM_INFINITY:
            size = soft
    return max(1, int(memory_gb * 1e9 / size))
