"""Forward passes of an update with the pictures of its rows: trainers cut batches by rows, and the tensors of pictures
have another number of lines in each family."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch

from xp.episode.picture_reader import PictureReader
from xp.worker.media import without_adapters

ROWS: Final = "token_type_ids"
"""Argument of a forward pass that has the numbers of the rows, [rows, 1]; TRL cuts it with them."""


@contextmanager
def showing_pictures(
    model: Any,
    reader: PictureReader,
    pictures: Sequence[Sequence[str]],
    *,
    is_sharded: bool,
    trains_vision: bool,
) -> Iterator[None]:
    """Context manager: forward passes of `model` get the tensors of their rows' pictures in place of ROWS.

    Args:
        model: the policy or its reference, wrapped or not.
        reader: the pictures as the engine reads them.
        pictures: digests of the pictures of each row that ROWS may name.
        is_sharded: whether ranks gather the vision part's weights together.
        trains_vision: whether the vision part is trained.
    """
    is_blank = False

    def show(_: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        nonlocal is_blank
        rows = kwargs[ROWS][:, 0].tolist()
        ids = kwargs["input_ids"]
        inputs = reader.inputs(ids, [digest for row in rows for digest in pictures[row]])
        is_blank = not inputs
        others = {key: value for key, value in kwargs.items() if key != ROWS}
        return args, others | {key: value.to(ids.device) for key, value in inputs.items()}

    # Before FSDP's own hook, which casts the tensors.
    hook = model.register_forward_pre_hook(show, with_kwargs=True, prepend=True)
    try:
        if not is_sharded:
            yield
            return
        with seeing_nothing(model, reader.blank, trains=trains_vision, is_due=lambda: is_blank):
            yield
    finally:
        hook.remove()


@contextmanager
def seeing_nothing(
    model: Any,
    inputs: Mapping[str, torch.Tensor],
    *,
    trains: bool,
    is_due: Callable[[], bool] = lambda: True,
) -> Iterator[None]:
    """Context manager: the vision part runs in each forward pass, on a picture of which no output depends.

    FSDP gathers its weights on all ranks together, and a rank that left it out would make the others wait forever.

    Args:
        model: the network, with adapters or without, wrapped or not.
        inputs: tensors of the picture.
        trains: whether the vision part is trained; all ranks then also reduce its gradients together.
        is_due: whether a forward pass has no pictures of its own.
    """
    base = without_adapters(model)

    def see(_: Any, __: Any, embedded: torch.Tensor) -> torch.Tensor:
        if not is_due():
            return embedded
        picture = {key: value.to(embedded.device) for key, value in inputs.items()}
        with torch.set_grad_enabled(trains and torch.is_grad_enabled()):
            total = _total(base.get_image_features(**picture))
        if not trains:
            return embedded
        return embedded + (0 * total).to(embedded)

    # Where transformers' models run it, so that all ranks gather the same weights at the same time.
    hook = base.get_input_embeddings().register_forward_hook(see)
    try:
        yield
    finally:
        hook.remove()


def _total(features: Any) -> torch.Tensor:
    """Sum over all tensors of a model's output of pictures."""
    if isinstance(features, torch.Tensor):
        return features.float().sum()
    if isinstance(features, Mapping):
        features = list(features.values())
    if isinstance(features, list | tuple):
        return torch.stack([_total(part) for part in features if part is not None]).sum()
    return torch.zeros(())
