"""A key-value cache with a slot for each episode; slots have different lengths and are kept between turns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.nn.functional import pad
from transformers.cache_utils import Cache, CacheLayerMixin
from transformers.masking_utils import AttentionMaskInterface, create_masks_for_generate

UNEVALUATED = "xp_unevaluated"
"""Attention implementation for which transformers' mask is the function that decides which columns are seen."""


class Prefix(NamedTuple):
    """Keys and values of the beginning of a sequence, one pair per layer, [heads, tokens, head size]."""

    layers: Sequence[tuple[torch.Tensor, torch.Tensor]]
    length: int


class SlotLayer(CacheLayerMixin):  # type: ignore[misc]
    """Keys and values of one layer, [slots, heads, capacity, head size]; the buffers grow by doubling."""

    is_compileable = False
    is_sliding = False

    def __init__(self, slots: SlotCache) -> None:
        super().__init__()
        self._slots = slots

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        # Zeros, since masked values are multiplied by 0, which needs finite numbers.
        self.keys, self.values = (
            states.new_zeros(
                self._slots.count, states.shape[1], self._slots.capacity, states.shape[3]
            )
            for states in (key_states, value_states)
        )
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Appends each slot's new columns; returns all columns of the slots."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        slots = self._slots
        more = slots.capacity - self.keys.shape[2]
        if more:
            self.keys, self.values = (
                pad(self.keys, (0, 0, 0, more)),
                pad(self.values, (0, 0, 0, more)),
            )
        self.keys[slots.current[:, None], :, slots.columns] = key_states.transpose(1, 2)
        self.values[slots.current[:, None], :, slots.columns] = value_states.transpose(1, 2)
        return self.keys[slots.read, :, : slots.width], self.values[slots.read, :, : slots.width]

    def prefix(self, slot: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.keys[slot, :, :length].clone(), self.values[slot, :, :length].clone()

    def fill(
        self, slots: torch.Tensor, pair: tuple[torch.Tensor, torch.Tensor], length: int
    ) -> None:
        self.keys[slots, :, :length], self.values[slots, :, :length] = pair

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._slots.width + query_length, 0

    def get_seq_length(self) -> int:
        return self._slots.width

    def get_max_length(self) -> int:
        return -1

    get_max_cache_shape = get_max_length


class SlotCache:
    """The slots of all layers, and those of the next forward pass.

    Args:
        count: largest number of concurrent episodes.
        capacity: initial number of tokens per slot.
    """

    def __init__(self, count: int, capacity: int) -> None:
        self.count = count
        self.capacity = capacity
        self.cache = Cache(layer_class_to_replicate=partial(SlotLayer, self))
        self.lengths = torch.zeros(count, dtype=torch.long)
        """Tokens in each slot."""
        self.current = torch.zeros(0, dtype=torch.long)
        """Slots of this forward pass."""
        self.read: Any = self.current
        """The same, or a slice where they are the first ones, whose buffers are read without a copy."""
        self.width = 0
        """Number of columns for attention."""
        self.columns = torch.zeros(0, 0, dtype=torch.long)
        """Column of each new token, [slots, new tokens]."""

    def aim(self, slots: torch.Tensor | None, num_slots: int, new: int) -> torch.Tensor:
        """Sets the slots of the next forward pass; returns the position of each new token, [slots, new].

        Args:
            slots: their numbers. None means the first `num_slots`.
            num_slots: number of slots.
            new: number of tokens per slot, with padding.
        """
        self.current = torch.arange(num_slots) if slots is None else slots
        self.read = slice(num_slots) if slots is None else slots
        lengths = self.lengths[self.current]
        self.columns = lengths[:, None] + torch.arange(new)
        self.width = int(lengths.max()) + new
        while self.width > self.capacity:
            self.capacity *= 2
        return self.columns

    def prefix(self, slot: int, length: int) -> Prefix:
        """A copy of the beginning of a slot."""
        return Prefix([layer.prefix(slot, length) for layer in self.cache.layers], length)

    def fill(self, slots: Sequence[int], prefix: Prefix) -> None:
        """Sets the beginning of these slots."""
        index = torch.tensor(slots)
        for layer, pair in zip(self.cache.layers, prefix.layers, strict=True):
            layer.fill(index, pair, prefix.length)
        self.lengths[index] = prefix.length


AttentionMaskInterface.register(UNEVALUATED, lambda *, mask_function, **_: mask_function)


def mask_rule(model: Any) -> Any:
    """The model's own rule (causal, sliding, chunked) for which columns a token attends to; one for each kind of layer,
    if there are several."""
    config = deepcopy(model.config)
    config._attn_implementation = UNEVALUATED
    create = getattr(model, "create_masks_for_generate", create_masks_for_generate)
    return create(config, torch.zeros(1, 1, 1), None, None, position_ids=None)


def masks(rule: Any, model: Any, positions: torch.Tensor, width: int) -> Any:
    """Attention masks [slots, 1, new tokens, columns]: boolean, or numbers that are added to the scores.

    Args:
        rule: the model's `mask_rule`.
        model: a Hugging Face model.
        positions: position of each new token, [slots, new tokens]; a token's column is its position.
        width: number of columns of the cache.
    """
    if isinstance(rule, dict):
        return {
            kind: masks(rule_of_kind, model, positions, width)
            for kind, rule_of_kind in rule.items()
        }
    first = torch.tensor(0)  # of the batch, and of the heads
    is_seen = rule(first, first, positions[:, None, :, None], torch.arange(width))
    if model.config._attn_implementation != "eager":
        return is_seen
    return torch.zeros(is_seen.shape, dtype=model.dtype).masked_fill(
        ~is_seen, torch.finfo(model.dtype).min
    )


@contextmanager
def without_padding_mask(model: Any, config: Any, attention_mask: torch.Tensor) -> Iterator[None]:
    """Context manager: forward passes of `model` get no attention mask if no row has padding before its tokens.

    Causal attention never looks at later positions, so padding after the tokens changes none of their outputs. Without
    a mask, torch's attention skips the scores above the diagonal. The mask stays for FlashAttention, which removes the
    padding by it, and for models with a router, whose loss is a mean over the tokens in the mask.

    Args:
        model: the policy or its reference, wrapped or not.
        config: configuration of the model.
        attention_mask: 0 for padding, else 1, [rows, tokens].
    """
    is_needed = config._attn_implementation != "sdpa" or getattr(
        config, "output_router_logits", False
    )
    if is_needed or not bool(attention_mask[:, 0].all()):
        yield
        return
    hook = model.register_forward_pre_hook(
        lambda _, args, kwargs: (args, {**kwargs, "attention_mask": None}), with_kwargs=True
    )
    try:
        yield
    finally:
        hook.remove()
