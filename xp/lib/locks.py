"""Locks on files, which the kernel releases when their process ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def try_lock(path: Path) -> Iterator[bool]:
    """Context manager: takes a lock unless another process has it; yields whether it was taken."""
    from filelock import FileLock, Timeout

    try:
        acquired = FileLock(path).acquire(blocking=False)
    except Timeout:
        yield False
        return
    with acquired:
        yield True
