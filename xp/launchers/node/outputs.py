"""Checks that a stage wrote its declared outputs; older files do not count."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from xp.atomic import write_atomically
from xp.digest import bytes_digest, file_digest

VERIFIED = ".verified.json"

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


def damaged(root: Path, manifest: str) -> str | None:
    """Returns the fault in the files of a content-addressed result; None if they match its manifest.

    Digests are computed once: a record beside the manifest has the size and time of change of the verified files.

    Args:
        root: the outputs root.
        manifest: a JSON file relative to it, whose `files` are names beside it and their sha256.
    """
    directory = (root / manifest).parent
    try:
        content = (root / manifest).read_bytes()
        files = json.loads(content).get("files", {})
        found = {name: _size_and_time(directory / name) for name in files}
    except (OSError, ValueError, AttributeError) as error:
        return str(error)
    seen = {"manifest": bytes_digest(content), "files": found}
    record = directory / VERIFIED
    with suppress(OSError, ValueError):
        if json.loads(record.read_text(encoding="utf-8")) == seen:
            return None
    for name, digest in files.items():
        if file_digest(directory / name) != digest:
            return f"{name} does not match its sha256"
    with suppress(OSError):  # a read-only store is verified each time
        write_atomically(record, json.dumps(seen) + "\n")
    return None


def _size_and_time(path: Path) -> list[int]:
    found = path.stat()
    return [found.st_size, found.st_mtime_ns]


def _state(path: Path) -> State:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
