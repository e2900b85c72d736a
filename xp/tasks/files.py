"""Converts the store's file errors to clear messages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from xp.errors import ExitCode, XpError


@contextmanager
def writing_below(path: Path) -> Iterator[None]:
    """Context manager: converts OSError to an XpError that names the path."""
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
