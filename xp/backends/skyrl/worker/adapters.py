"""Merges an adapter into whole weights: SkyRL saves only LoRA's adapter, but later stages need a model."""

from __future__ import annotations

import json
from pathlib import Path

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
