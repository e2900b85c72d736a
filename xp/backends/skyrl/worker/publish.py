"""Puts trained models where later stages and users find them, whole or not at all; others only while they are kept."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from xp.backends.skyrl.worker.adapters import merge_adapter
from xp.worker.publish import publish


def publish_model(save: Callable[[Path], None], target: Path) -> None:
    """Publish what SkyRL saves, with whole weights.

    Args:
        save: writes a Hugging Face directory.
        target: of the model.
    """

    def save_whole(staged: Path) -> None:
        save(staged)
        merge_adapter(staged)

    publish(save_whole, target)


def prune_exports(exports: Path, checkpoints: Path) -> None:
    """Remove Hugging Face models of checkpoints that SkyRL has deleted; it keeps these itself.

    Args:
        exports: holds one `global_step_<n>` for each model.
        checkpoints: holds one `global_step_<n>` for each checkpoint that is left.
    """
    for export in exports.glob("global_step_*"):
        if not (checkpoints / export.name).exists():
            shutil.rmtree(export)
