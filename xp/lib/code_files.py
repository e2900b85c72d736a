"""Files of a user's code, the same for the copy that a run takes and for the digests of graders and environments.

The code of a module is its whole top-level package, since a module may import any other module of it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path


def code_places(spec: ModuleSpec) -> list[Path]:
    """Directories of a top-level package (several for a namespace package), or the file of a single module."""
    return [Path(place) for place in spec.submodule_search_locations or ()] or [Path(str(spec.origin))]


def code_files(place: Path) -> list[Path]:
    """All files below a package's directory that are its code or its data; for a file, the file itself."""
    if place.is_file():
        return [place]
    files = []
    for directory, below, names in os.walk(place):
        omitted = left_out(directory, [*below, *names])
        below[:] = [name for name in below if name not in omitted]
        files += [Path(directory, name) for name in names if name not in omitted]
    return sorted(files)


def left_out(directory: str, names: Sequence[str]) -> set[str]:
    """Names in a directory that are not code: caches, hidden files, and links."""
    return {
        name
        for name in names
        if name == "__pycache__"
        or name.endswith(".pyc")
        or name.startswith(".")
        or os.path.islink(os.path.join(directory, name))
    }
