"""The policy as a whole model on every rank, for generation, without the wrappers of training."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

from xp.backends.trl.worker.process import Ranks
from xp.episode.tokens import ChatTokens
from xp.worker.adapters import merge_adapters
from xp.worker.media import network_from, restore_media
from xp.worker.publish import publish


class WholePolicy:
    """Provides a whole model with the current weights.

    Under FSDP2 a forward pass is a collective, and ranks whose episodes have different numbers of turns would block
    each
    other; so each rank generates with its own copy, which is updated before the first turn.

    Args:
        is_copied: whether it is a copy even without FSDP2, so that updates do not change it meanwhile.
    """

    def __init__(self, *, is_copied: bool = False) -> None:
        self._is_copied = is_copied
        self._copy: Any = None

    def current(self, trainer: Any) -> Any:
        """The model for generation; every rank must call it."""
        model = trainer.accelerator.unwrap_model(trainer.model)
        if hasattr(model, "peft_config") and not trainer.is_fsdp_enabled:
            model = model.get_base_model()
        else:
            model = model
        if self._is_copied or trainer.is_fsdp_enabled:
            return self._copied(model, trainer.is_fsdp_enabled)
        return model

    def _copied(self, model: Any, is_sharded: bool) -> Any:
        if self._copy is None and is_sharded:
            self._copy = network_from(model.config, dtype=next(model.parameters()).dtype).eval()
        elif self._copy is None:
            self._copy = deepcopy(model).eval()
            # TRL's own forward would still call that of the original.
            vars(self._copy).pop("forward", None)
        copies = self._copy.state_dict()
        # Parameters and buffers; FSDP2 shards parameters alone.
        for name, tensor in model.state_dict().items():
            copies[name].copy_(tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor)
        return self._copy


def publish_policy(
    trainer: Any,
    chat: ChatTokens,
    target: Path,
    dtype: str,
    ranks: Ranks,
    start: Path | None = None,
    *,
    trains_vision: bool = False,
) -> None:
    """Publishes weights (safetensors, one file), configuration and tokenizer; every rank must call it.

    Args:
        trainer: a trainer of TRL's.
        chat: the policy's tokenizer.
        target: path of the model.
        dtype: data type of the computation.
        ranks: the training processes.
        start: directory of the model that the training began with, for its parts beside the text. None means that it
            is not on this machine.
        trains_vision: whether its vision part was trained.
    """
    if trainer.is_fsdp_enabled:
        model = _gathered(trainer)
    else:
        model = trainer.accelerator.unwrap_model(trainer.model)
    if not ranks.is_main:
        return

    def save(staged: Path) -> None:
        named = (
            {"selected_adapters": ["default"]}
            if hasattr(model, "peft_config")
            else {"max_shard_size": "1TB"}
        )
        model.save_pretrained(staged, **named)
        merge_adapters(staged, dtype)
        chat.tokenizer.save_pretrained(staged)
        if start is not None:
            restore_media(staged, start, trains_vision=trains_vision)

    publish(save, target, chat.end_ids, chat.template)


def _gathered(trainer: Any) -> Any:
    """The whole model on the first rank; on others it lacks weights."""
    import torch

    weights = trainer.accelerator.get_state_dict(trainer.model)
    with torch.device("meta"):
        model = network_from(trainer.model.config)
    model.generation_config = trainer.accelerator.unwrap_model(trainer.model).generation_config
    if trainer.accelerator.is_main_process:
        model.load_state_dict(weights, assign=True)
        model.tie_weights()
    return model
