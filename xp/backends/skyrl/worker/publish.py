"""Publishes trained models for later stages and users, atomically; removes exports of deleted checkpoints."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from xp.backends.skyrl.worker.adapters import merge_adapter
from xp.backends.skyrl.worker.checkpoints import FORM
from xp.worker.publish import publish
from xp.worker.step_directories import step_directories


def publish_model(save: Callable[[Path], None], target: Path) -> None:
    """Publishes the model that SkyRL saves, with whole weights.

    Args:
        save: function that writes a Hugging Face directory.
        target: path of the model.
    """

    def save_whole(staged: Path) -> None:
        save(staged)
        merge_adapter(staged)

    publish(save_whole, target)


def prune_exports(exports: Path, checkpoints: Path) -> None:
    """Removes Hugging Face models of checkpoints that SkyRL has deleted, which SkyRL itself keeps.

    Args:
        exports: directory with one `global_step_<n>` for each model.
        checkpoints: directory with one `global_step_<n>` for each remaining checkpoint.
    """
    for export in step_directories(exports, FORM).values():
        if not (checkpoints / export.name).exists():
            shutil.rmtree(export)
