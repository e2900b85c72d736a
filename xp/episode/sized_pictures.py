"""Pictures for engines whose own processor makes the placeholders and the pixels of a conversation again.

The processors of PIL and of torchvision differ where they resize. So an engine gets each picture in the size to which xp's
processor resizes it, and leaves that size as it is; the pixels then differ by rounding alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

from xp.envs.picture_bytes import base64_png, png_uri
from xp.episode.picture_reader import GRID, PictureReader

MAX_KEPT: Final = 128
"""Largest number of pictures that are kept as a request has them: the turns and the episodes of a group repeat them."""


class SizedPictures:
    """Pictures in the size of their patches.

    Args:
        reader: the pictures as xp's ids and the update have them, of a processor with a grid of patches: the placeholders
            of a picture are one run.
    """

    def __init__(self, reader: PictureReader) -> None:
        self.reader = reader
        self.image = lru_cache(MAX_KEPT)(self._resized)
        """Function from a picture's digest to PIL's image."""
        self.png = lru_cache(MAX_KEPT)(self._encoded)
        """Function from a picture's digest to its PNG, in base64."""

    def uri(self, digest: str) -> str:
        """A picture as a data URI of its PNG."""
        return png_uri(self.png(digest))

    def places(self, ids: Sequence[int], digests: Sequence[str]) -> list[range]:
        """The places of each picture's placeholders.

        Args:
            ids: all tokens of a conversation.
            digests: its pictures, in their order.

        Raises:
            PictureMismatch: the ids have other placeholders than the pictures have tokens.
        """
        self.reader.check(ids, digests)
        places = []
        end = 0
        for digest in digests:
            start = ids.index(self.reader.placeholder_id, end)
            end = start + self.reader.num_tokens(digest)
            places.append(range(start, end))
        return places

    def short_ids(self, ids: Sequence[int], digests: Sequence[str]) -> list[int]:
        """The ids with one placeholder for each picture, which the engine repeats; arguments and faults as `places`."""
        short: list[int] = []
        end = 0
        for place in self.places(ids, digests):
            short += ids[end : place.start + 1]
            end = place.stop
        return [*short, *ids[end:]]

    def _resized(self, digest: str) -> Any:
        processor = self.reader.processor.image_processor
        _, height, width = self.reader.pixels([digest])[GRID][0].tolist()
        size = (width * processor.patch_size, height * processor.patch_size)
        return self.reader.image(digest).resize(size, processor.resample)

    def _encoded(self, digest: str) -> str:
        return base64_png(self._resized(digest))
