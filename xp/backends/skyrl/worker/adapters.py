"""Whole weights from an adapter: SkyRL saves LoRA's adapter alone, and every later stage wants a model."""

from __future__ import annotations

import json
from pathlib import Path

CONFIG = "adapter_config.json"


def merge_adapter(directory: Path) -> None:
    """Put whole weights in the place of an adapter; a directory of whole weights is left as it is.

    Args:
        directory: what SkyRL saved as a Hugging Face model. Its adapter names the base model.
    """
    config = directory / CONFIG
    if not config.is_file():
        return
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    base = json.loads(config.read_text())["base_model_name_or_path"]
    # As SkyRL loads what it trains.
    whole = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    merged = PeftModel.from_pretrained(whole, str(directory)).merge_and_unload()
    adapter = [config, *directory.glob("adapter_model*")]
    merged.save_pretrained(directory)
    for file in adapter:
        file.unlink()
