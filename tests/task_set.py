"""What a program that only asks a task set about itself finds: a manifest without a table."""

from __future__ import annotations

from pathlib import Path

from xp.tasks.manifest import MANIFEST, Count, Manifest


def leave_manifest(directory: Path) -> Path:
    """Write the manifest of a set of one training task; returns the directory."""
    directory.mkdir(parents=True, exist_ok=True)
    found = Manifest(
        "k", {"format": 1, "members": {}}, {"m": "1"}, "0" * 64, {"m": {"train": Count(1)}}, (), (), {}, {}
    )
    (directory / MANIFEST).write_text(found.to_json())
    return directory
