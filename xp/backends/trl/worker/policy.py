"""The policy as a whole model on every rank, for generation, without the wrappers of training."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

from xp.backends.trl.worker.process import Ranks
from xp.episode.tokens import ChatTokens
from xp.lib.models.files import local_directory
from xp.spec import Model
from xp.worker.adapters import merge_adapters
from xp.worker.media import network_from, restore_media, without_adapters
from xp.worker.publish import publish


class WholePolicy:
    """Provides a whole model with the current weights.

    Under FSDP2 a forward pass is a collective, and ranks whose episodes have different numbers of turns would block
    each other; so each rank generates with its own copy, which is updated before the first turn.

    Args:
        is_copied: whether it is a copy even without FSDP2, so that updates do not change it meanwhile.
    """

    def __init__(self, *, is_copied: bool = False) -> None:
        self._is_copied = is_copied
        self._copy: Any = None

    def current(self, trainer: Any) -> Any:
        """The model for generation; every rank must call it."""
        model = trainer.accelerator.unwrap_model(trainer.model)
        if not trainer.is_fsdp_enabled:
            model = without_adapters(model)
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
    policy: Model,
    ranks: Ranks,
    start: str,
) -> None:
    """Publishes weights (safetensors, one file), configuration and tokenizer; every rank must call it.

    Args:
        trainer: a trainer of TRL's.
        chat: the policy's tokenizer.
        target: path of the model.
        policy: the spec's model.
        ranks: the training processes.
        start: Hugging Face id or directory of the model that the training began with, for its parts beside the text.
    """
    if trainer.is_fsdp_enabled:
        model = _gathered(trainer)
    else:
        model = trainer.accelerator.unwrap_model(trainer.model)
    if not ranks.is_main:
        return

    def save(staged: Path) -> None:
        if hasattr(model, "peft_config"):
            model.save_pretrained(staged, selected_adapters=["default"])
        else:
            model.save_pretrained(staged, max_shard_size="1TB")
        merge_adapters(staged, policy.dtype.value)
        chat.tokenizer.save_pretrained(staged)
        start_directory = local_directory(start, Path())
        if start_directory is not None:
            restore_media(staged, start_directory, trains_vision=policy.train_vision)

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
