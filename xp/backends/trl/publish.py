"""Writes a trained model where later stages and users find it: whole or not at all."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any


def publish_model(model: Any, tokenizer: Any, target: Path) -> None:
    """Save weights (safetensors), configuration and tokenizer beside the target, then rename into place.

    A model of an earlier attempt is kept as `<name>.attempt-<n>`.
    """
    staged = target.with_name(f".{target.name}.part")
    shutil.rmtree(staged, ignore_errors=True)
    model.save_pretrained(staged, safe_serialization=True)
    tokenizer.save_pretrained(staged)
    if target.exists():
        number = 1 + len(list(target.parent.glob(f"{target.name}.attempt-*")))
        target.rename(target.with_name(f"{target.name}.attempt-{number}"))
    staged.rename(target)
