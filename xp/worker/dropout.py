"""Turns off a model's own dropout in training: Slime's network has none, and a run means the same on every backend."""

from __future__ import annotations

from typing import Any


def disable_dropout(model: Any) -> None:
    """Sets all dropout probabilities of a Hugging Face model, and of its configuration, to 0; adapters keep theirs.

    Attention takes its probability from a number (`attention_dropout`), which TRL's `disable_dropout` leaves.
    """
    from torch.nn import Dropout

    own = [module for name, module in model.named_modules() if "lora_" not in name]
    configs = {id(one.config): one.config for one in own if hasattr(one, "config")}
    for owner in (*own, *configs.values()):
        for name, value in list(vars(owner).items()):
            if "drop" in name and isinstance(value, float):
                setattr(owner, name, 0.0)
        if isinstance(owner, Dropout):
            owner.p = 0.0
