"""Writing files so that a name never points to half a file, and turning the disk's refusals into one clear message."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from xp.errors import ExitCode, XpError

TEMPORARY = ".tmp"


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Gives a temporary path beside `path` that takes its name, synced to disk, when the block ends well."""
    temporary = path.with_name(path.name + TEMPORARY)
    try:
        yield temporary
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def sync_directory(path: Path) -> None:
    """Make renames within a directory last through a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def writing_below(path: Path) -> Iterator[None]:
    """Errors of the file system become an XpError that names the place."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        place = error.filename or path
        raise XpError(
            f"cannot write the task set: {reason}: {place}\n"
            f"free some space or correct the permissions below {path}, then run the same command again; "
            "finished shards are kept",
            ExitCode.RESOURCE,
        ) from error


def file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
