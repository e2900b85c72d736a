"""The store's files: their digests, and the disk's refusals turned into one clear message."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from xp.errors import ExitCode, XpError


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
