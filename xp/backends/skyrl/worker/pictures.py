"""Pictures under SkyRL: what its engine gets of a conversation, and the pixels that its update gets.

SkyRL's own generator renders the whole conversation again in each turn, and gives the update the pixels of vLLM's
rendering: from vLLM 0.29 on they are not normalized for Qwen2-VL and Qwen2.5-VL, since the engine does that itself. Here
the ids stay as they are, each picture is rendered alone, once, and the update gets the pixels of xp's own processor.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import torch
from skyrl.backends.renderer import VLLMRenderer
from skyrl.tinker.types import ImageChunk

from xp.episode.picture_reader import GRID, PIXELS, PictureMismatch, PictureReader
from xp.episode.sized_pictures import MAX_KEPT, SizedPictures
from xp.errors import ExitCode, XpError

TENSORS: Final = (PIXELS, GRID)
"""Names of the tensors of pictures in SkyRL's batches."""


class SkyRLPictures:
    """The pictures of conversations.

    Args:
        reader: the pictures as xp's ids have them.
        client: SkyRL's client of vLLM's servers, which render them for the engine. None means that the engine is the
            rehearsal's, which has them from a reader of its own.
        model_name: name of the model on the servers.

    Raises:
        XpError: (PLAN) pictures of this model are other tensors than those of SkyRL's batches.
    """

    def __init__(self, reader: PictureReader, client: Any | None, model_name: str) -> None:
        if {*reader.form.dims} != {*TENSORS}:
            raise XpError(
                f"model.images: SkyRL's batches have {' and '.join(TENSORS)} of pictures, and"
                f" {type(reader.processor).__name__} makes {', '.join(reader.form.dims)}; set backend=trl",
                ExitCode.PLAN,
            )
        self.reader = reader
        self._client = client
        self._sized = SizedPictures(reader)
        self._renderer = None if client is None else VLLMRenderer(client, model_name)
        self._rendered: dict[str, asyncio.Future[str | None]] = {}

    async def features(self, ids: list[int], digests: Sequence[str]) -> dict[str, Any] | None:
        """SkyRL's MultiModalFeatures of a conversation. None means that it has no pictures.

        Args:
            ids: its tokens, with a placeholder for each token of a picture.
            digests: its pictures.

        Raises:
            PictureMismatch: the ids have other placeholders, or the engine has another number for a picture.
        """
        ranges = [
            {"offset": positions.start, "length": len(positions)}
            for positions in self._sized.places(ids, digests)
        ]
        if not digests:
            return None
        return {
            "mm_hashes": {"image": [self._name(digest) for digest in digests]},
            "mm_placeholders": {"image": ranges},
            "kwargs_data": {"image": [await self._encoded(digest) for digest in digests]},
        }

    def pixels(
        self, rows: Sequence[Sequence[str]]
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """`pixel_values` and `image_grid_thw` of each row, with no lines for a row without pictures.

        Args:
            rows: digests of the pictures of each row.
        """
        pictures = [self.reader.row_pixels(digests) for digests in rows]
        return [tensors[PIXELS] for tensors in pictures], [tensors[GRID] for tensors in pictures]

    def _name(self, digest: str) -> str:
        """Name of a picture for the engine. vLLM keeps what its vision part makes of a picture by it, also after an
        update of the weights."""
        if self._client is None:
            return digest
        return f"{digest}/{getattr(self._client, 'weight_version', 0)}"

    async def _encoded(self, digest: str) -> str | None:
        """vLLM's text of a picture, which is rendered once, also if several episodes ask at the same time."""
        rendered = self._rendered.get(digest)
        if rendered is None:
            if len(self._rendered) >= MAX_KEPT:
                del self._rendered[next(iter(self._rendered))]
            rendered = asyncio.ensure_future(self._render(digest))
            self._rendered[digest] = rendered
        try:
            return await asyncio.shield(rendered)
        except Exception:
            self._rendered.pop(digest, None)
            raise

    async def _render(self, digest: str) -> str | None:
        if self._renderer is None:
            return None
        data = await asyncio.to_thread(self._sized.png, digest)
        # SkyRL's field reads base64.
        (rendered,) = await self._renderer._render_images(
            [ImageChunk(data=data.encode(), format="png")]
        )
        num_tokens = self.reader.num_tokens(digest)
        if rendered.placeholder_tokens != [self.reader.placeholder_id] * num_tokens:
            raise PictureMismatch(
                f"the tokens of pictures differ: the engine has {len(rendered.placeholder_tokens)} tokens for an image, and xp"
                f" {num_tokens}"
            )
        encoded: str | None = rendered.kwargs_data
        return encoded
