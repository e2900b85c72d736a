"""Puts a model that was trained here into the package, whole or not at all."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from xp.lib.digest import file_digest
from xp.worker.tiny_model import MANIFEST


def ship_model(target: Path, write: Callable[[Path], Mapping[str, Any]]) -> None:
    """Replaces `target` when the model is complete.

    Args:
        target: directory in the package.
        write: writes the model's files into a directory, and returns the facts of its manifest.
    """
    unfinished = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        facts = write(unfinished)
        files = {file.name: file_digest(file) for file in sorted(unfinished.iterdir())}
        manifest = json.dumps({**facts, "files": files}, indent=2, sort_keys=True)
        (unfinished / MANIFEST).write_text(f"{manifest}\n")
        unfinished.chmod(0o755)
        for file in unfinished.iterdir():
            file.chmod(0o644)
        shutil.rmtree(target, ignore_errors=True)
        unfinished.rename(target)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
