"""Checks that a stage wrote its declared outputs; older files do not count."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

State = tuple[int, int, int] | None
"""Inode, time of change and size of a file; None: there is no file."""


def states(root: Path, names: Sequence[str]) -> dict[str, State]:
    """Current state of the files."""
    return {name: _state(root / name) for name in names}


def missing(root: Path, names: Sequence[str], before: Mapping[str, State], run: str) -> list[str]:
    """Declared outputs that do not exist, or, within the run, are unchanged files of an earlier attempt.

    Args:
        root: the outputs root.
        names: paths relative to it.
        before: `states` at the beginning of the stage.
        run: directory of the run, relative to the root. Outputs that runs share (a task set, a built model) are named
            by content and may have existed before.
    """
    now = states(root, names)
    return [
        name
        for name, state in now.items()
        if state is None or (state == before.get(name) and name.startswith(f"{run}/"))
    ]


def _state(path: Path) -> State:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
