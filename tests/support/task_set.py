"""What a program that only asks a task set about itself finds: a manifest, and a table without tasks."""

from __future__ import annotations

from pathlib import Path

from xp.tasks.manifest import MANIFEST, TABLE, Count, Manifest
from xp.tasks.row import write_rows


def leave_manifest(directory: Path) -> Path:
    """Write the manifest of a set of one training task; returns the directory."""
    directory.mkdir(parents=True, exist_ok=True)
    found = Manifest(
        "k",
        {"format": 1, "members": {}},
        {"m": "1"},
        "0" * 64,
        {"m": {"train": Count(1)}},
        (),
        (),
        {},
        {},
    )
    (directory / MANIFEST).write_text(found.to_json())
    write_rows(directory / TABLE, ())
    return directory
