"""A key-value cache that rows can leave: one buffer a layer, grown by doubling, so that a turn appends in place."""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin


class BufferLayer(CacheLayerMixin):  # type: ignore[misc]
    """Keys and values of one layer, [rows, heads, capacity, head size], of which the first `width` columns are filled.

    Args:
        capacity: columns to begin with.
    """

    is_compileable = False
    is_sliding = False

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self._capacity = capacity
        self._width = 0

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        rows, heads, _, size = key_states.shape
        self.keys = key_states.new_empty(rows, heads, self._capacity, size)
        self.values = value_states.new_empty(rows, heads, self._capacity, size)
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append columns; gives back views of everything so far."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        end = self._width + key_states.shape[2]
        if end > self.keys.shape[2]:
            self._resize(max(end, 2 * self.keys.shape[2]))
        self.keys[:, :, self._width : end] = key_states
        self.values[:, :, self._width : end] = value_states
        self._width = end
        return self.keys[:, :, :end], self.values[:, :, :end]

    def select(self, rows: torch.Tensor) -> None:
        """Keep (or repeat) these rows, in this order."""
        self.keys, self.values = (self._copied(buffer, rows, buffer.shape[2]) for buffer in (self.keys, self.values))

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._width + query_length, 0

    def get_seq_length(self) -> int:
        return self._width

    def get_max_length(self) -> int:
        return -1

    get_max_cache_shape = get_max_length

    def _resize(self, capacity: int) -> None:
        rows = torch.arange(self.keys.shape[0])
        self.keys, self.values = (self._copied(buffer, rows, capacity) for buffer in (self.keys, self.values))

    def _copied(self, buffer: torch.Tensor, rows: torch.Tensor, capacity: int) -> torch.Tensor:
        copy = buffer.new_empty(len(rows), buffer.shape[1], capacity, buffer.shape[3])
        copy[:, :, : self._width] = buffer[rows, :, : self._width]
        return copy


def buffer_cache(num_layers: int, capacity: int) -> Cache:
    """A cache of `num_layers` empty buffers."""
    return Cache(layers=[BufferLayer(capacity) for _ in range(num_layers)])
