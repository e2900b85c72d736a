"""Dropout is off in training: the ratio of the loss is between two passes of the same network."""

from __future__ import annotations

from typing import Any


def disable_dropout(model: Any) -> None:
    """Sets all dropout probabilities of a Hugging Face model, and of its configuration, to 0; adapters keep theirs.

    Attention takes its probability from a number (`attention_dropout`), which TRL's `disable_dropout` leaves.
    """
    from torch.nn import Dropout

    modules = [module for name, module in model.named_modules() if "lora_" not in name]
    configs = {id(module.config): module.config for module in modules if hasattr(module, "config")}
    for owner in (*modules, *configs.values()):
        for name, value in list(vars(owner).items()):
            if "drop" in name and isinstance(value, float):
                setattr(owner, name, 0.0)
        if isinstance(owner, Dropout):
            owner.p = 0.0
