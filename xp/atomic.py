"""Atomic writes: a name never points to half a file, even if a process is killed or several write the same file."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

TEMPORARY: Final = ".tmp"
"""Suffix of a file that is being written. Such a file may be deleted when the process that wrote it is gone."""


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields a temporary file beside `path` that is renamed to `path` when the block ends without an exception.

    The file is there and empty. Its content is on the disk before the rename; after an exception nothing is left.
    """
    temporary = temporary_beside(path)
    try:
        yield temporary
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def temporary_beside(path: Path) -> Path:
    """Makes an empty file beside `path`; its name cannot be guessed, so that a link left there is not written through.

    Raises:
        OSError: it cannot be made.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}{TEMPORARY}")
    os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666))
    return temporary


def write_atomically(path: Path, text: str) -> None:
    """Write a whole file or nothing, and make the directories above it; the file survives a power cut."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="")
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make renames within a directory survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
