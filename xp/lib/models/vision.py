"""The sizes of a model's part for pictures, by its config.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

GATED = ("silu", "swish")
"""Activations of feed-forward layers with a gate (Qwen2.5-VL)."""


@dataclass(frozen=True)
class VisionShape:
    """A transformer over the patches of a picture, whose outputs are merged to the tokens of the text network."""

    depth: int
    """Number of layers."""
    width: int
    inner: int
    """Width of the feed-forward layers."""
    is_gated: bool
    patch: int
    """Side of a patch in pixels."""
    merge: int
    """Patches of a token, in each direction."""
    values: int
    """Numbers of a patch as the processor makes them."""

    @property
    def matrices(self) -> int:
        """Number of matrices of a feed-forward layer."""
        return 3 if self.is_gated else 2

    @property
    def parameters(self) -> int:
        """Parameters of the layers' matrices, which are nearly all of the part."""
        return self.depth * (4 * self.width**2 + self.matrices * self.width * self.inner)

    def tokens(self, num_pixels: float) -> float:
        """Tokens of a picture; its sides are rounded to whole tokens, which changes the number by some percent.

        Args:
            num_pixels: width times height.
        """
        return max(1.0, num_pixels / (self.patch * self.merge) ** 2)


def vision_shape(config: Mapping[str, Any]) -> VisionShape | None:
    """The shape that a config.json describes; None without a part for pictures that is such a transformer.

    Args:
        config: the whole config.json.
    """
    section = config.get("vision_config")
    if not isinstance(section, Mapping):
        return None
    # Qwen2-VL's `hidden_size` is that of the text network.
    width = section.get("embed_dim") or section.get("hidden_size")
    depth = section.get("depth") or section.get("num_hidden_layers")
    if not isinstance(width, int) or not isinstance(depth, int):
        return None
    inner = section.get("intermediate_size") or int(section.get("mlp_ratio", 4) * width)
    patch = section.get("patch_size") or 14
    if not isinstance(patch, int):
        # InternVL's is that of each side.
        patch = patch[0]
    frames = section.get("temporal_patch_size") or 1
    channels = section.get("in_channels") or section.get("in_chans") or 3
    return VisionShape(
        depth=depth,
        width=width,
        inner=inner,
        is_gated=section.get("hidden_act") in GATED,
        patch=patch,
        merge=section.get("spatial_merge_size") or 1,
        values=channels * frames * patch**2,
    )
