"""Check that a stage wrote its promised outputs. Files from before its beginning do not count."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from xp.atomic import write_atomically
from xp.digest import bytes_digest, file_digest

VERIFIED = ".verified.json"

State = tuple[int, int, int] | None
"""Identity, time of change and size of a file; None: there is none."""


def states(root: Path, names: Sequence[str]) -> dict[str, State]:
    """Present state of the files."""
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


def damaged(root: Path, manifest: str) -> str | None:
    """Returns what is wrong with the files of a content-addressed result; None if they match its manifest.

    Their digests are taken once: a record beside the manifest says which files (size, time of change) had them.

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
    with suppress(OSError):  # a store that cannot be written is verified each time
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
