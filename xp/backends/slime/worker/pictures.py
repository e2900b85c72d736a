"""Pictures under Slime: what SGLang gets of a conversation, and the pixels that Megatron's update gets.

SGLang makes pixels itself, and its answer has the number of tokens that it read, which is compared with xp's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from xp.episode.picture_reader import PictureMismatch, PictureReader
from xp.episode.sized_pictures import SizedPictures
from xp.worker.engines.conversation import Conversation


@dataclass(frozen=True)
class PictureRequest:
    """The part of a request that pictures change."""

    fields: Mapping[str, Any]
    """Fields of SGLang's /generate request."""
    num_context_tokens: int
    """Tokens of the context, as xp has them."""
    num_encoded_again: int | None
    """Tokens of the context if the engine decodes it and encodes the text. None means that the same ones come out."""

    def check(self, num_read: int) -> None:
        """Compares the tokens that the engine read with xp's; raises PictureMismatch.

        With Slime's patch SGLang decodes the ids of a request with pictures and encodes the text; without it, it keeps
        them.

        Args:
            num_read: `prompt_tokens` of SGLang's answer.
        """
        if num_read != self.num_context_tokens:
            raise PictureMismatch(
                f"the tokens of pictures differ: the engine read {num_read} tokens of a context with images, and xp has"
                f" {self.num_context_tokens}"
            )
        if self.num_encoded_again == self.num_context_tokens:
            raise PictureMismatch(
                "the tokens of pictures differ: the engine encodes the text of a context with images again, and the text"
                " of the policy's turns gives other tokens than the policy wrote"
            )


class SlimePictures:
    """The pictures of conversations, for SGLang's requests and for Slime's samples.

    Args:
        reader: the pictures as xp's ids have them.
    """

    def __init__(self, reader: PictureReader) -> None:
        self.reader = reader
        self._sized = SizedPictures(reader)

    def request(self, ids: Sequence[int], digests: Sequence[str]) -> PictureRequest | None:
        """What SGLang gets of a context, whose ids have one placeholder for each picture there. None means no pictures.

        Args:
            ids: tokens of the context.
            digests: its pictures.

        Raises:
            PictureMismatch: the ids have another number of placeholders than the pictures have tokens.
        """
        short = self._sized.short_ids(ids, digests)
        if not digests:
            return None
        tokenizer = self.reader.processor.tokenizer
        again = tokenizer(tokenizer.decode(short))["input_ids"]
        num_repeated = len(ids) - len(short)
        return PictureRequest(
            {"input_ids": short, "image_data": [self._sized.uri(digest) for digest in digests]},
            len(ids),
            None if again == short else len(again) + num_repeated,
        )

    def train_inputs(self, row: Conversation) -> dict[str, Any] | None:
        """Slime's `multimodal_train_inputs` of a row: `pixel_values` and `image_grid_thw`. None means no pictures."""
        return self.reader.pixels(row.pictures) or None
