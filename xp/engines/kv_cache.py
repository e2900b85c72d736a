"""A key-value cache with a slot for each episode; slots have different lengths and are kept between turns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from transformers.cache_utils import Cache, CacheLayerMixin


class Prefix(NamedTuple):
    """Keys and values of the beginning of a sequence, one pair per layer, [heads, tokens, head size]."""

    layers: Sequence[tuple[torch.Tensor, torch.Tensor]]
    length: int


class Window:
    """The cache slots of the next forward pass, and their numbers of tokens; shared by all layers.

    Args:
        slots: number of slots.
        capacity: initial number of tokens per slot.
    """

    def __init__(self, slots: int, capacity: int) -> None:
        self.slots, self.capacity = slots, capacity
        self.rows: torch.Tensor | None = None
        """Slots of this forward pass; None: the first `count` ones, whose buffers are read in place."""
        self.count = 0
        self.columns = torch.zeros(0, 0, dtype=torch.long)
        """Column of each new token, [rows, new tokens]."""
        self.width = 0
        """Number of columns for attention."""


class SlotLayer(CacheLayerMixin):  # type: ignore[misc]
    """Keys and values of one layer, [slots, heads, capacity, head size]; the buffers grow by doubling."""

    is_compileable = False
    is_sliding = False

    def __init__(self, window: Window) -> None:
        super().__init__()
        self._window = window

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        _, heads, _, size = key_states.shape
        # Zeros, since masked values are multiplied by 0, which needs finite numbers.
        shape = (self._window.slots, heads, self._window.capacity, size)
        self.keys, self.values = key_states.new_zeros(shape), value_states.new_zeros(shape)
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Appends each row's new columns; returns all columns of the rows."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        window = self._window
        if window.capacity > self.keys.shape[2]:
            self.keys, self.values = _grown(self.keys, window.capacity), _grown(self.values, window.capacity)
        rows = torch.arange(window.count) if window.rows is None else window.rows
        self.keys[rows[:, None], :, window.columns] = key_states.transpose(1, 2)
        self.values[rows[:, None], :, window.columns] = value_states.transpose(1, 2)
        which: Any = slice(window.count) if window.rows is None else window.rows
        return self.keys[which, :, : window.width], self.values[which, :, : window.width]

    def prefix(self, slot: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.keys[slot, :, :length].clone(), self.values[slot, :, :length].clone()

    def fill(self, slots: torch.Tensor, pair: tuple[torch.Tensor, torch.Tensor], length: int) -> None:
        self.keys[slots, :, :length], self.values[slots, :, :length] = pair

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._window.width + query_length, 0

    def get_seq_length(self) -> int:
        return self._window.width

    def get_max_length(self) -> int:
        return -1

    get_max_cache_shape = get_max_length


class SlotCache:
    """The slots of all layers.

    Args:
        num_layers: number of the model's layers.
        slots: largest number of concurrent episodes.
        capacity: initial number of tokens per slot.
    """

    def __init__(self, num_layers: int, slots: int, capacity: int) -> None:
        self._window = Window(slots, capacity)
        self._layers = [SlotLayer(self._window) for _ in range(num_layers)]
        self.cache = Cache(layers=self._layers)
        self.lengths = torch.zeros(slots, dtype=torch.long)
        """Tokens in each slot."""

    def aim(self, rows: torch.Tensor | None, count: int, new: int) -> torch.Tensor:
        """Sets the slots of the next forward pass; returns the position of each new token, [rows, new].

        Args:
            rows: slots; None: the first `count`.
            count: number of rows.
            new: number of tokens per row, with padding.
        """
        window = self._window
        lengths = self.lengths[:count] if rows is None else self.lengths[rows]
        window.rows, window.count = rows, count
        window.columns = lengths[:, None] + torch.arange(new)
        window.width = int(lengths.max()) + new
        while window.width > window.capacity:
            window.capacity *= 2
        return window.columns

    @property
    def width(self) -> int:
        """Number of columns for attention in the next forward pass."""
        return self._window.width

    def prefix(self, slot: int, length: int) -> Prefix:
        """A copy of the beginning of a slot."""
        return Prefix([layer.prefix(slot, length) for layer in self._layers], length)

    def fill(self, slots: Sequence[int], prefix: Prefix) -> None:
        """Sets the beginning of these slots."""
        index = torch.tensor(slots)
        for layer, pair in zip(self._layers, prefix.layers, strict=True):
            layer.fill(index, pair, prefix.length)
        self.lengths[index] = prefix.length


def _grown(buffer: torch.Tensor, capacity: int) -> torch.Tensor:
    slots, heads, width, size = buffer.shape
    larger = buffer.new_zeros(slots, heads, capacity, size)
    larger[:, :, :width] = buffer
    return larger


SLIDING = "sliding_attention"


def masks(config: Any, positions: torch.Tensor, width: int) -> Any:
    """Attention masks: the columns that each new token attends to.

    These are the columns up to its own position; in layers with a window, only the last of them.

    Args:
        config: configuration of the model.
        positions: position of each new token, [rows, new tokens]; a token's column is its position.
        width: number of columns of the cache.
    """
    columns = torch.arange(width)
    is_seen = columns <= positions[:, :, None]
    kinds = set(getattr(config, "layer_types", None) or ())
    window = getattr(config, "sliding_window", None)
    if SLIDING not in kinds and (kinds or window is None):
        return _as_taken(config, is_seen)
    is_near = is_seen & (columns > positions[:, :, None] - (window or width))
    if not kinds:
        return _as_taken(config, is_near)
    return {kind: _as_taken(config, is_near if kind == SLIDING else is_seen) for kind in kinds}


def _as_taken(config: Any, is_seen: torch.Tensor) -> torch.Tensor:
    """Mask [rows, 1, new tokens, columns]: boolean, or numbers that are added to the scores."""
    mask = is_seen[:, None]
    if getattr(config, "_attn_implementation", None) != "eager":
        return mask
    lowest = torch.finfo(torch.float32).min
    return torch.zeros(mask.shape).masked_fill(~mask, lowest)


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
    is_needed = config._attn_implementation != "sdpa" or getattr(config, "output_router_logits", False)
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
