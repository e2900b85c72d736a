"""Publishes a trained model for later stages and users, atomically."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from xp.worker.publish import publish


def trained_model(trainer: Any) -> Any:
    """The whole trained model on the first rank (on others it may lack weights); every rank must call it.

    Adapters are merged into the weights.
    """
    if trainer.is_fsdp_enabled:
        return _gathered(trainer)
    model = trainer.accelerator.unwrap_model(trainer.model)
    return model.merge_and_unload() if hasattr(model, "peft_config") else model


def _gathered(trainer: Any) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    weights = trainer.accelerator.get_state_dict(trainer.model)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(trainer.model.config)
    model.generation_config = trainer.accelerator.unwrap_model(trainer.model).generation_config
    if trainer.accelerator.is_main_process:
        model.load_state_dict(weights, assign=True)
        model.tie_weights()
    return model


def publish_model(model: Any, tokenizer: Any, target: Path) -> None:
    """Publishes weights (safetensors, one file), configuration and tokenizer."""

    def save(staged: Path) -> None:
        model.save_pretrained(staged, max_shard_size="1TB")
        tokenizer.save_pretrained(staged)

    publish(save, target)
