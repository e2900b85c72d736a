"""Digests of the files that a stage has made, and their verification before they are used again."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Final

from xp.lib.atomic import write_atomically
from xp.lib.digest import bytes_digest, file_digest
from xp.lib.reading import is_inner_path

DIGESTS: Final = "digests.json"
"""Manifest of a published model: `files` with the sha256 of each."""
VERIFIED: Final = ".verified.json"
"""Record beside a manifest: size and time of change of the files when they were verified last."""


def write_digests(directory: Path) -> None:
    """Writes DIGESTS with the sha256 of every file below the directory."""
    write_atomically(
        directory / DIGESTS, json.dumps({"files": digests_below(directory)}, indent=1) + "\n"
    )


def digests_below(directory: Path) -> dict[str, str]:
    """The `files` of a manifest: path below the directory -> sha256, for every file there."""
    return {
        str(file.relative_to(directory)): file_digest(file)
        for file in sorted(directory.rglob("*"))
        if file.is_file() and file.name not in (DIGESTS, VERIFIED)
    }


def damaged(manifest: Path) -> str | None:
    """Returns the fault in the files of a manifest; None if they match it.

    Digests are computed once: a record beside the manifest has the size and time of change of the verified files.

    Args:
        manifest: a JSON file, whose `files` are names beside it and their sha256. One without `files`, as earlier
            versions of xp and backends of plugins write, has nothing to check.
    """
    directory = manifest.parent
    try:
        content = manifest.read_bytes()
        files = dict(json.loads(content).get("files", {}).items())
        missing = [
            name for name in files if not is_inner_path(name) or not (directory / name).is_file()
        ]
        if missing:
            return f"{missing[0]!r} is missing"
        if not files:
            return None
        stats = {name: (directory / name).stat() for name in files}
    except (OSError, ValueError, AttributeError, TypeError, RecursionError) as error:
        return str(error)
    sizes = {name: [stat.st_size, stat.st_mtime_ns] for name, stat in stats.items()}
    seen = {"manifest": bytes_digest(content), "files": sizes}
    record = directory / VERIFIED
    with suppress(OSError, ValueError, RecursionError):
        if json.loads(record.read_text(encoding="utf-8")) == seen:
            return None
    for name, digest in files.items():
        if file_digest(directory / name) != digest:
            return f"{name} does not match its sha256"
    with suppress(OSError):  # a read-only store is verified each time
        write_atomically(record, json.dumps(seen) + "\n")
    return None
