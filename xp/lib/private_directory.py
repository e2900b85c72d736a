"""Directories for temporary files that no other user can open.

A killed process cannot remove its own; the next process that makes one does it.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

PREFIX: Final = "xp-tmp-"


def make(kind: str, parent: Path | None = None) -> Path:
    """Makes a directory that is removed when this process ends, and removes those of killed processes.

    It is locked as long as its process, or a fork of it, lives. A lock is seen in other containers too, where a
    process's number is not.

    Args:
        kind: what it is for; a part of its name.
        parent: where; None: the system's directory for temporary files.
    """
    place = Path(tempfile.gettempdir()) if parent is None else parent
    for other in place.glob(f"{PREFIX}*"):
        with suppress(OSError):  # that of a process that lives
            if other.lstat().st_uid == os.getuid():
                os.close(_locked(other))
                remove(other)
    unlocked = Path(tempfile.mkdtemp(prefix="xp-new-", dir=place))
    with suppress(OSError):  # A file system without locks: then nobody else can take it for a killed process's.
        _locked(unlocked)
    directory = unlocked.rename(place / f"{PREFIX}{kind}-{unlocked.name.removeprefix('xp-new-')}")
    atexit.register(_remove_in, directory, os.getpid())
    return directory


def remove(directory: Path) -> None:
    """Removes a directory that `make` returned."""
    shutil.rmtree(directory, ignore_errors=True)


def _locked(directory: Path) -> int:
    """A descriptor that locks a directory; raises OSError if another process has locked it."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _remove_in(directory: Path, process: int) -> None:
    if os.getpid() == process:
        remove(directory)
