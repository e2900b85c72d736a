"""Whether a stage wrote what it promised: what lay there before it began does not count."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

State = tuple[int, int, int] | None
"""Identity, time of change and size of a file; None: there is none."""


def states(root: Path, names: Sequence[str]) -> dict[str, State]:
    """What is there now."""
    return {name: _state(root / name) for name in names}


def missing(root: Path, names: Sequence[str], before: Mapping[str, State], run: str) -> list[str]:
    """Promised outputs that are absent, or, within the run, still those of an earlier attempt.

    Args:
        root: the outputs root.
        names: relative to it.
        before: `states` when the stage began.
        run: directory of the run, relative to the root. What is shared by runs (a task set, a made model) is named by
            its content and may have been there.
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
