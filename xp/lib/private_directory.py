"""Directories for temporary files that no other user can open."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

PREFIX: Final = "xp-tmp-"


def make(kind: str, parent: Path | None = None) -> Path:
    """Makes a directory that is removed when this process ends.

    Args:
        kind: what it is for; a part of its name.
        parent: where. None means the system's directory for temporary files.
    """
    directory = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{kind}-", dir=parent))
    process = os.getpid()
    atexit.register(lambda: remove(directory) if os.getpid() == process else None)
    return directory


def remove(directory: Path) -> None:
    """Removes a directory that `make` returned."""
    shutil.rmtree(directory, ignore_errors=True)
