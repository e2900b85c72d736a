"""Pictures under SkyRL: what its engine gets of a conversation, and the pixels that its update gets.

SkyRL's own generator renders the whole conversation again in each turn. Here the ids stay as they are: each picture is
processed alone, once, and its pixels are those of the engine and of the update.
"""

from __future__ import annotations

import asyncio
import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from skyrl.backends.renderer import VLLMRenderer, decode_mm_kwargs
from skyrl.tinker.types import ImageChunk

from xp.episode.picture_reader import GRID, PIXELS, PictureReader

MAX_KEPT: Final = 256
"""Largest number of processed pictures that are kept: the turns and the episodes of a group repeat them."""


class PictureMismatch(Exception):
    """The ids of a conversation have other placeholders than its pictures have tokens."""


@dataclass(frozen=True)
class ProcessedPicture:
    """A picture as the engine and the update get it."""

    encoded: str | None
    """vLLM's text of the pixels. None means that the engine of a rehearsal has them from the reader itself."""
    pixel_values: torch.Tensor
    grid: torch.Tensor


class EnginePictures:
    """The pictures of conversations.

    Args:
        reader: the pictures as xp's ids have them.
        client: SkyRL's client of vLLM's servers, whose processor makes the pixels. None means that the engine is the
            rehearsal's, and that the reader does.
        model_name: name of the model on the servers.
    """

    def __init__(self, reader: PictureReader, client: Any | None, model_name: str) -> None:
        self.reader = reader
        self._renderer = None if client is None else VLLMRenderer(client, model_name)
        self._processed: dict[str, asyncio.Future[ProcessedPicture]] = {}

    async def features(self, ids: list[int], digests: Sequence[str]) -> dict[str, Any] | None:
        """SkyRL's MultiModalFeatures of a conversation. None means that it has no pictures.

        Args:
            ids: its tokens, with a placeholder for each token of a picture.
            digests: its pictures.

        Raises:
            PictureMismatch: the ids have other placeholders, or the engine has another number for a picture.
        """
        fault = self.reader.fault(ids, digests)
        if fault is not None:
            raise PictureMismatch(fault)
        if not digests:
            return None
        places = []
        start = 0
        for digest in digests:
            length = self.reader.num_tokens(digest)
            start = ids.index(self.reader.placeholder_id, start)
            places.append({"offset": start, "length": length})
            start += length
        return {
            # vLLM's caches have a picture by this name.
            "mm_hashes": {"image": list(digests)},
            "mm_placeholders": {"image": places},
            "kwargs_data": {"image": [(await self._picture(digest)).encoded for digest in digests]},
        }

    async def pixels(
        self, rows: Sequence[Sequence[str]]
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """`pixel_values` and `image_grid_thw` of each row, with no lines for a row without pictures.

        Args:
            rows: digests of the pictures of each row.
        """
        blank = self.reader.no_pixels()
        values = []
        grids = []
        for digests in rows:
            pictures = [await self._picture(digest) for digest in digests]
            values.append(
                torch.cat([blank[PIXELS], *(picture.pixel_values for picture in pictures)])
            )
            grids.append(torch.cat([blank[GRID], *(picture.grid for picture in pictures)]))
        return values, grids

    async def _picture(self, digest: str) -> ProcessedPicture:
        """A picture, which is processed once, also if several episodes ask at the same time."""
        processed = self._processed.get(digest)
        if processed is None:
            if len(self._processed) >= MAX_KEPT:
                del self._processed[next(iter(self._processed))]
            processed = asyncio.ensure_future(self._load(digest))
            self._processed[digest] = processed
        try:
            return await asyncio.shield(processed)
        except Exception:
            self._processed.pop(digest, None)
            raise

    async def _load(self, digest: str) -> ProcessedPicture:
        if self._renderer is None:
            pixels = self.reader.pixels([digest])
            return ProcessedPicture(None, pixels[PIXELS], pixels[GRID])
        chunk = ImageChunk(data=await asyncio.to_thread(self._png, digest), format="png")
        (rendered,) = await self._renderer._render_images([chunk])
        num_tokens = self.reader.num_tokens(digest)
        if rendered.placeholder_tokens != [self.reader.placeholder_id] * num_tokens:
            raise PictureMismatch(
                f"PictureTokens: the engine has {len(rendered.placeholder_tokens)} tokens for an image, and xp"
                f" {num_tokens}"
            )
        pixels = decode_mm_kwargs({"image": [rendered.kwargs_data]})
        return ProcessedPicture(
            rendered.kwargs_data, pixels["pixel_values"], pixels["image_grid_thw"]
        )

    def _png(self, digest: str) -> bytes:
        """A picture in the size that xp gives the processor, in base64, as SkyRL's field reads it."""
        written = io.BytesIO()
        self.reader.image(digest).save(written, "PNG")
        return base64.b64encode(written.getvalue())
