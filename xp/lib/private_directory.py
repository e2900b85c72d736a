"""Directories for temporary files that no other user can open.

A killed process cannot remove its own; the next process that makes one does it.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

PREFIX: Final = "xp-"
OWNER: Final = ".xp-owner"
"""File of a directory, locked as long as its process, or a fork of it, lives. A lock is seen in other containers too,
where a process's number is not."""

_locks: dict[Path, int] = {}
"""Descriptors of the owner files of this process's directories."""


def make(kind: str, parent: Path | None = None) -> Path:
    """Makes a directory that is removed when this process ends, and removes those of killed processes.

    Args:
        kind: what it is for; a part of its name.
        parent: where; None: the system's directory for temporary files.
    """
    place = Path(tempfile.gettempdir()) if parent is None else parent
    _remove_left(place)
    made = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{kind}-", dir=place))
    _mark(made)
    atexit.register(_remove_own, made, os.getpid())
    return made


def remove(directory: Path) -> None:
    """Removes a directory that `make` returned."""
    shutil.rmtree(directory, ignore_errors=True)
    if (lock := _locks.pop(directory, None)) is not None:
        os.close(lock)


def _mark(directory: Path) -> None:
    unmarked = directory / f"{OWNER}.new"
    lock = os.open(unmarked, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        unmarked.rename(directory / OWNER)  # Only now: one without a lock would be taken for a killed process's.
    except OSError:  # A file system without locks: nobody will take it for that.
        os.close(lock)
        return
    _locks[directory] = lock


def _remove_left(place: Path) -> None:
    """Removes this user's directories whose processes have ended."""
    for directory in place.glob(f"{PREFIX}*"):
        with suppress(OSError):
            found = directory.lstat()
            if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid():
                _remove_if_left(directory)


def _remove_if_left(directory: Path) -> None:
    """Removes a directory; raises OSError if it has an owner, or no mark."""
    lock = os.open(directory / OWNER, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if stat.S_ISREG(os.fstat(lock).st_mode):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(directory, ignore_errors=True)
    finally:
        os.close(lock)


def _remove_own(directory: Path, process: int) -> None:
    if os.getpid() == process:
        remove(directory)
