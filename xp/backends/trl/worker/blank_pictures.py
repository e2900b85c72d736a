"""Rows without pictures, which TRL cuts out of a batch with pictures: the model gets no empty tensors for them."""

from __future__ import annotations

from typing import Any

from xp.episode.picture_reader import GRID, PIXELS

OF_PICTURES = (PIXELS, GRID, "mm_token_type_ids")


def leave_out_blank_pictures(model: Any) -> None:
    """Makes forward passes leave out the arguments of pictures where no row has one.

    transformers' models fail on pixels without lines. TRL calls a model without its head.

    Args:
        model: the policy, with adapters or without.
    """
    base = model.get_base_model() if hasattr(model, "peft_config") else model

    def leave_out(_: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        pixels = kwargs.get(PIXELS)
        if pixels is None or len(pixels):
            return args, kwargs
        return args, {key: value for key, value in kwargs.items() if key not in OF_PICTURES}

    base.model.register_forward_pre_hook(leave_out, with_kwargs=True, prepend=True)
