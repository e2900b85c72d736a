"""Models of SkyRL's checkpoints: an adapter becomes whole weights; exports of deleted checkpoints are removed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

from xp.worker.publish import publish, step_directories

FORM: Final = "global_step_{}"
"""Name of the directory of a step's checkpoint, and of its export."""


CONFIG = "adapter_config.json"


def merge_adapter(directory: Path) -> None:
    """Replaces an adapter by whole weights; a directory of whole weights is not changed.

    Args:
        directory: Hugging Face directory that SkyRL saved; its adapter names the base model.
    """
    config = directory / CONFIG
    if not config.is_file():
        return
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    base = json.loads(config.read_text())["base_model_name_or_path"]
    # The same settings as SkyRL's for the trained model.
    whole = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    merged = PeftModel.from_pretrained(whole, str(directory)).merge_and_unload()
    adapter = [config, *directory.glob("adapter_model*")]
    merged.save_pretrained(directory)
    for file in adapter:
        file.unlink()


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
