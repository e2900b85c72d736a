"""Writes a trained model where later stages and users find it: whole or not at all."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def trained_model(trainer: Any) -> tuple[Any, Mapping[str, Any] | None]:
    """The plain model, and its weights where they are not in it; every rank must call it.

    Adapters are merged into the weights that they adapt.
    """
    if trainer.is_fsdp_enabled:
        from transformers import AutoModelForCausalLM

        weights = trainer.accelerator.get_state_dict(trainer.model)
        import torch

        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(trainer.model.config), weights
    model = trainer.accelerator.unwrap_model(trainer.model)
    return (model.merge_and_unload() if hasattr(model, "peft_config") else model), None


def publish_model(model: Any, tokenizer: Any, target: Path, weights: Mapping[str, Any] | None = None) -> None:
    """Save weights (safetensors), configuration and tokenizer beside the target, then rename into place.

    A model of an earlier attempt is kept as `<name>.attempt-<n>`.

    Args:
        weights: in place of the model's own.
    """
    staged = target.with_name(f".{target.name}.part")
    shutil.rmtree(staged, ignore_errors=True)
    model.save_pretrained(staged, state_dict=weights, max_shard_size="1TB")
    tokenizer.save_pretrained(staged)
    if target.exists():
        number = 1 + len(list(target.parent.glob(f"{target.name}.attempt-*")))
        target.rename(target.with_name(f"{target.name}.attempt-{number}"))
    staged.rename(target)
