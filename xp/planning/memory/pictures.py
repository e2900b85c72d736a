"""Bytes and tokens of pictures: what an update with `model.images` needs beside the text network.

The pixels are float32 as the processor makes them. A frozen vision part has the values of one layer at a time, before
the text network has any: a patch takes its state, that normalized, queries, keys, values, and both of the latter with
their positions in float32. A trained one keeps all of that of each layer, with its feed-forward layer. Compared with the
peak of torch's allocator on the CPU (tests/unit/test_memory_pictures.py); not tried on accelerators, where kernels of
attention may need less.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from xp.fields.shared import model_config
from xp.lib.models.vision import VisionShape, vision_shape
from xp.spec import RunSpec

FLOAT32 = 4
TYPED = 5
"""Numbers of a patch in the data type of the computation while attention is computed, as multiples of the width: its
state, that normalized, queries, keys and values."""
ROTATED = 26.5
"""Bytes of a patch and its width in float32 meanwhile: queries and keys, with their positions and while they get them.
Chosen to be at or above what was measured (docs/memory.md)."""
BACKWARD = 1.2
"""Bytes of a layer while it is passed backward, as a multiple of what it keeps. Chosen so that the peaks of trained parts
in tests/unit/test_memory_pictures.py are planned with 0.95 to 1.35 times their size."""


@dataclass(frozen=True)
class PictureBatch:
    """Numbers of one accelerator."""

    tokens: float
    """Tokens of the pictures of a micro-batch."""
    kept: float
    """Tokens of the pictures whose pixels are on the accelerator: of the micro-batch, or of all its episodes of a
    step."""


def seen_by(spec: RunSpec) -> VisionShape | None:
    """The vision part of a run with pictures. None means that it has no pictures, or that the part is not known."""
    if spec.model.images is None:
        return None
    return vision_shape(model_config(spec) or {})


def tokens_of_episode(spec: RunSpec, shape: VisionShape, length: float) -> float:
    """Largest number of an episode's tokens that are of pictures: `per_episode` pictures of `max_pixels`.

    Args:
        spec: the run.
        shape: its vision part.
        length: all tokens of the episode, of which the pictures' are a part.
    """
    images = spec.model.images
    assert images is not None
    return min(length, images.per_episode * shape.tokens(images.max_pixels))


def layer_bytes(shape: VisionShape, width: int) -> float:
    """Bytes of a patch while one layer of a frozen part is computed.

    Args:
        shape: the part.
        width: bytes of a number in the data type of the computation.
    """
    attention = shape.width * (TYPED * width + ROTATED)
    feed_forward = width * (2 * shape.width + shape.matrices * shape.inner)
    return max(attention, feed_forward)


def kept_bytes(shape: VisionShape, width: int) -> float:
    """Bytes of a patch that one layer of a trained part keeps for its backward pass: an activation has two more parts
    than the matrices of its feed-forward layer."""
    return shape.width * (TYPED * width + ROTATED) + width * (shape.matrices + 2) * shape.inner


def picture_bytes(
    shape: VisionShape,
    batch: PictureBatch,
    *,
    hidden: int,
    width: int,
    later: float,
    is_trained: bool,
    is_checkpointed: bool,
) -> float:
    """Bytes that pictures add to the peak of an update.

    Args:
        shape: the vision part.
        batch: numbers of tokens.
        hidden: width of the text network.
        width: bytes of a number in the data type of the computation.
        later: bytes of the text network's activations and logits, which come after a frozen part has ended.
        is_trained: whether the part is trained.
        is_checkpointed: whether its layers are computed again in the backward pass.
    """
    patches = batch.tokens * shape.merge**2
    pixels = FLOAT32 * batch.kept * shape.merge**2 * shape.values
    features = width * batch.tokens * hidden
    if is_trained:
        states = width * shape.width if is_checkpointed else kept_bytes(shape, width)
        at_once = BACKWARD * kept_bytes(shape, width) if is_checkpointed else 0.0
        return pixels + features + patches * (shape.depth * states + at_once)
    return pixels + features + max(0.0, patches * layer_bytes(shape, width) - later)


def shown_tokens(messages: Any, shape: VisionShape, max_pixels: int) -> float:
    """Tokens of the pictures of a prepared prompt.

    Args:
        messages: xp's own messages, which have the sizes of their pictures.
        shape: the vision part.
        max_pixels: `model.images.max_pixels`.
    """
    pictures: list[Mapping[str, Any]] = [
        picture for message in messages for picture in message.get("pictures", ())
    ]
    return sum(
        shape.tokens(min(max_pixels, picture["width"] * picture["height"])) for picture in pictures
    )
