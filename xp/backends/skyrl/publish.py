"""Puts a trained model where later stages and users find it: whole or not at all."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path


def publish_model(save: Callable[[Path], None], target: Path) -> None:
    """Let SkyRL save beside the target, then rename into place.

    A model of an earlier attempt is kept as `<name>.attempt-<n>`.

    Args:
        save: writes a Hugging Face directory.
        target: where it is found in the end.
    """
    staged = target.with_name(f".{target.name}.part")
    shutil.rmtree(staged, ignore_errors=True)
    save(staged)
    if target.exists():
        number = 1 + len(list(target.parent.glob(f"{target.name}.attempt-*")))
        target.rename(target.with_name(f"{target.name}.attempt-{number}"))
    staged.rename(target)
