"""Puts trained models where later stages and users find them, whole or not at all; others only while they are kept."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from xp.backends.skyrl.worker.adapters import merge_adapter


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
    merge_adapter(staged)
    if target.exists():
        number = 1 + len(list(target.parent.glob(f"{target.name}.attempt-*")))
        target.rename(target.with_name(f"{target.name}.attempt-{number}"))
    staged.rename(target)


def prune_exports(exports: Path, checkpoints: Path) -> None:
    """Remove Hugging Face models of checkpoints that SkyRL has deleted; it keeps these itself.

    Args:
        exports: holds one `global_step_<n>` for each model.
        checkpoints: holds one `global_step_<n>` for each checkpoint that is left.
    """
    for export in exports.glob("global_step_*"):
        if not (checkpoints / export.name).exists():
            shutil.rmtree(export)
