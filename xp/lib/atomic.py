"""Atomic writes: a name never points to half a file, even if a process is killed or several write the same file.

A line that is appended is whole, or the next one begins on a line of its own. Temporary files of a process are in a
directory that ends with it.
"""

from __future__ import annotations

import atexit
import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

TEMPORARY: Final = ".tmp"
"""Suffix of a file that is being written. Such a file may be deleted when the process that wrote it is gone."""

PRIVATE: Final = "xp-tmp-"
"""Beginning of the names of directories for temporary files."""


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
    os.close(
        os.open(
            temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666
        )
    )
    return temporary


def write_atomically(path: Path, text: str) -> None:
    """Writes a whole file or nothing, and makes the directories above it; the file survives a power cut."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="")
    sync_directory(path.parent)


def write_json(path: Path, value: Any) -> None:
    """Writes a value as JSON, as `write_atomically` does."""
    write_atomically(path, json.dumps(value, indent=2) + "\n")


def append_line(path: Path, line: str, mode: int = 0o666) -> None:
    """Appends a line to a file, or makes the file; after that the line is on the disk.

    If the last line was cut (its writer was killed, the disk was full), the new one begins on a line of its own.

    Args:
        path: the file.
        line: the line, without its end.
        mode: permissions of a new file.

    Raises:
        OSError: it cannot be written, or the path is a link.
    """
    with open(
        path, "ab+", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW, mode)
    ) as file:
        size = file.seek(0, os.SEEK_END)
        is_torn = size > 0 and os.pread(file.fileno(), 1, size - 1) != b"\n"
        file.write(b"\n" * is_torn + line.encode("utf-8", "backslashreplace") + b"\n")
        file.flush()
        os.fsync(file.fileno())


def sync_directory(path: Path) -> None:
    """Makes renames within a directory survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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


def private_directory(kind: str, parent: Path | None = None) -> Path:
    """Makes a directory that no other user can open, and that is removed when this process ends.

    Args:
        kind: what it is for; a part of its name.
        parent: where. None means the system's directory for temporary files.
    """
    directory = Path(tempfile.mkdtemp(prefix=f"{PRIVATE}{kind}-", dir=parent))
    process = os.getpid()
    atexit.register(lambda: remove_directory(directory) if os.getpid() == process else None)
    return directory


def remove_directory(directory: Path) -> None:
    """Removes a directory that `private_directory` returned."""
    shutil.rmtree(directory, ignore_errors=True)
