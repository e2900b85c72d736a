"""Attention masks for rows of different lengths, in the format of Hugging Face models."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

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
    hook = model.register_forward_pre_hook(_without, with_kwargs=True)
    try:
        yield
    finally:
        hook.remove()


def _without(_: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    return args, {**kwargs, "attention_mask": None}
