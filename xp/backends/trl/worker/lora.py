"""Merges a directory of adapters into a whole model, for engines that need one; sets the adapters' dropout."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from xp.worker.publish import check_there


def whole_model(directory: str, target: Path) -> str:
    """Directory with the whole model: this one, or for adapters, `target` with the merged model.

    Args:
        directory: directory of a trained model or a checkpoint, or a Hugging Face id.
        target: directory for a merged model.

    Raises:
        XpError: (RUN_DIR) the run has no such model, or it is damaged.
    """
    check_there(directory)
    if Path(directory, "adapter_config.json").is_file():
        from peft import AutoPeftModelForCausalLM
        from transformers import AutoTokenizer

        model = AutoPeftModelForCausalLM.from_pretrained(directory, dtype="auto")
        model.merge_and_unload().save_pretrained(target)
        AutoTokenizer.from_pretrained(directory).save_pretrained(target)
        return str(target)
    return directory


def set_dropout(model: Any, probability: float) -> None:
    """Sets the dropout of the adapters of `model`; TRL's `disable_dropout` sets it to 0 with the base model's."""
    for one in _dropouts(model):
        one.p = probability


@contextmanager
def without_dropout(model: Any) -> Iterator[None]:
    """Context manager: the adapters of `model` have no dropout, also while the model is trained."""
    probabilities = [(one, one.p) for one in _dropouts(model)]
    set_dropout(model, 0.0)
    try:
        yield
    finally:
        for one, probability in probabilities:
            one.p = probability


def _dropouts(model: Any) -> Iterator[Any]:
    from peft.tuners.lora import LoraLayer
    from torch.nn import Dropout

    for layer in model.modules():
        if isinstance(layer, LoraLayer):
            # A layer without dropout has an identity there.
            yield from (one for one in layer.lora_dropout.values() if isinstance(one, Dropout))
