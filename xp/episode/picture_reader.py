"""The model's processor of pictures: placeholders in the tokens, and the pixels that belong to them.

The ids that it makes are those of the engine and of the update, and both get the pixels from here: two backends of one
processor differ by up to 0.015.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from xp.envs.pictures import PictureStore
from xp.errors import ExitCode, XpError
from xp.lib.digest import text_digest
from xp.lib.packages import require
from xp.lib.patching import replaced
from xp.spec.model import Images

GRID: Final = "image_grid_thw"
"""Key of the numbers of patches of each picture, in time, height and width."""
PIXELS: Final = "pixel_values"
MAX_KEPT: Final = 128
"""Largest number of pictures whose pixels are kept, since the turns and the episodes of a group repeat them; one of
200,704 pixels takes 5 MB."""


class PictureReader:
    """Pictures as a model reads them.

    Args:
        processor: transformers' processor of the model.
        store: the pictures.
        images: limits.

    Raises:
        XpError: (PLAN) the processor has another form than that of Qwen-VL: a run of one placeholder for each picture,
            and patches in a row with a grid.
    """

    def __init__(self, processor: Any, store: PictureStore, images: Images) -> None:
        self.processor = processor
        self.store = store
        self.max_pixels = images.max_pixels
        self.per_episode = images.per_episode
        merge_size = getattr(processor.image_processor, "merge_size", None)
        if merge_size is None or not hasattr(processor, "image_token_id"):
            raise XpError(
                f"model.images: xp gives {type(processor).__name__} no pictures; it knows processors with a grid of"
                " patches, of Qwen2-VL and later; choose such a model, or set model.images=null",
                ExitCode.PLAN,
            )
        self._patches_per_token = int(merge_size) ** 2
        self.placeholder_id: int = processor.image_token_id
        """Token that stands for a part of a picture."""
        self._placeholders = (str(processor.image_token), str(processor.video_token))
        self._num_tokens: dict[str, int] = {}
        self._kept: dict[str, Mapping[str, Any]] = {}
        """Pixels of pictures by digest, those that were used last at the end."""

    @staticmethod
    def load(
        place: str | Path, store: PictureStore, images: Images, tokenizer: Any
    ) -> PictureReader:
        """The reader of a model.

        Args:
            place: Hugging Face id or directory.
            store: the pictures.
            images: limits.
            tokenizer: the model's tokenizer.

        Raises:
            XpError: (PLAN) the model has no processor, or one of another form; (RUNTIME) PIL is not installed.
        """
        require("model.images", "PIL")
        return PictureReader(load_processor(place, tokenizer), store, images)

    def digest(self) -> str:
        """Digest of the processor and the limits, which determine the number of a picture's tokens."""
        settings = {
            name: value
            for name, value in self.processor.image_processor.to_dict().items()
            if not name.endswith("processor_type")
        }
        return text_digest(json.dumps([settings, self.max_pixels], sort_keys=True, default=str))

    def placeholder_in(self, text: str) -> str | None:
        """The placeholder of a picture or a video in a text of a message; None if there is none."""
        return next((mark for mark in self._placeholders if mark in text), None)

    def ids(self, text: str, digests: Sequence[str]) -> list[int]:
        """Token ids of a rendered text, whose placeholders the processor repeats once for each token of a picture.

        Args:
            text: has one placeholder for each picture.
            digests: the pictures, in their order.

        Raises:
            ValueError: the text has another number of placeholders.
            XpError: (TASKS) a picture is not in the store.
        """
        num_places = text.count(self._placeholders[0])
        if num_places != len(digests):
            raise ValueError(f"it renders {num_places} of {len(digests)} images")
        images = [self.image(digest) for digest in digests]
        made = self.processor(
            text=[text], images=images, add_special_tokens=False, return_tensors="pt"
        )
        ids = made["input_ids"][0].tolist()
        self._keep_pixels(digests, made)
        fault = self.fault(ids, digests)
        if fault is not None:
            raise ValueError(fault)
        return [*ids]

    def num_tokens(self, digest: str) -> int:
        """Number of a picture's tokens: its patches, which the model merges."""
        known = self._num_tokens.get(digest)
        if known is None:
            num_patches = int(self._pixels(digest)[GRID].prod())
            known = self._num_tokens[digest] = num_patches // self._patches_per_token
        return known

    def image(self, digest: str) -> Any:
        """A picture as PIL's image, as it goes into the processor."""
        return self.store.image(digest, self.max_pixels)

    def pixels(self, digests: Sequence[str]) -> dict[str, Any]:
        """`pixel_values` and `image_grid_thw` of pictures, one after the other; empty without pictures."""
        import torch

        parts = [self._pixels(digest) for digest in digests]
        if not parts:
            return {}
        return {key: torch.cat([part[key] for part in parts]) for key in (PIXELS, GRID)}

    def token_types(self, ids: Any) -> Any:
        """`mm_token_type_ids` of a tensor of ids: 1 for a picture's tokens, else 0."""
        return (ids == self.placeholder_id).long()

    def fault(self, ids: Sequence[int], digests: Sequence[str]) -> str | None:
        """The sentence about ids whose placeholders are not those of their pictures; None if they are.

        Args:
            ids: all tokens of a conversation.
            digests: its pictures.
        """
        expected = [self.num_tokens(digest) for digest in digests]
        num_ids = sum(token == self.placeholder_id for token in ids)
        if num_ids == sum(expected):
            return None
        return (
            f"PictureTokens: the tokens have {num_ids} placeholders of images, and the pixels of {len(digests)} images"
            f" are {sum(expected)}"
        )

    def _keep_pixels(self, digests: Sequence[str], made: Mapping[str, Any]) -> None:
        """Keeps the pixels that the processor made with a text, so that they are made once."""
        import torch

        sizes = made[GRID].prod(-1).tolist()
        parts = torch.split(made[PIXELS], sizes)
        for number, (digest, pixels) in enumerate(zip(digests, parts, strict=True)):
            self._keep(digest, {PIXELS: pixels, GRID: made[GRID][number : number + 1]})

    def _keep(self, digest: str, pixels: Mapping[str, Any]) -> Mapping[str, Any]:
        self._kept.pop(digest, None)
        self._kept[digest] = pixels
        while len(self._kept) > MAX_KEPT:
            del self._kept[next(iter(self._kept))]
        return pixels

    def _pixels(self, digest: str) -> Mapping[str, Any]:
        known = self._kept.get(digest)
        if known is not None:
            return self._keep(digest, known)
        made = self.processor.image_processor(images=[self.image(digest)], return_tensors="pt")
        return self._keep(digest, {key: made[key] for key in (PIXELS, GRID)})


def load_processor(place: str | Path, tokenizer: Any) -> Any:
    """transformers' processor of a model with its image processor of PIL, the same on every machine.

    Args:
        place: Hugging Face id or directory.
        tokenizer: the model's tokenizer, which it gets.

    Raises:
        XpError: (PLAN) the model has none.
    """
    from transformers import AutoProcessor

    try:
        with _without_videos():
            processor = AutoProcessor.from_pretrained(place, backend="pil")
    except (OSError, ValueError, KeyError) as error:
        reason = " ".join(str(error).split())[:200]
        raise XpError(
            f"model.images: {place} has no processor of pictures ({reason}); choose a model that reads pictures, or set"
            " model.images=null",
            ExitCode.PLAN,
        ) from None
    if not hasattr(processor, "image_processor"):
        raise XpError(
            f"model.images: {place} reads text alone; choose a model that reads pictures, or set model.images=null",
            ExitCode.PLAN,
        )
    processor.tokenizer = tokenizer
    # A trainer's checkpoint needs the tokenizer alone, and transformers writes no processor without one of videos.
    processor.save_pretrained = tokenizer.save_pretrained
    return processor


class _NoVideos:
    """Stands for transformers' AutoVideoProcessor, which needs torchvision."""

    @staticmethod
    def from_pretrained(*_: Any, **__: Any) -> None:
        return None


@contextmanager
def _without_videos() -> Iterator[None]:
    """Context manager: processors are made without the part for videos, which xp gives none."""
    from transformers import processing_utils

    check = processing_utils.ProcessorMixin.check_argument_for_proper_class
    classes = processing_utils.MODALITY_TO_AUTOPROCESSOR_MAPPING

    def check_others(processor: Any, name: str, part: Any) -> Any:
        if name == "video_processor" and part is None:
            return type(None)
        return check(processor, name, part)

    class OtherClasses(type(classes)):  # type: ignore[misc]
        def __getitem__(self, key: str) -> Any:
            return _NoVideos if key == "video_processor" else super().__getitem__(key)

    with (
        replaced(processing_utils.ProcessorMixin, check_argument_for_proper_class=check_others),
        replaced(processing_utils, MODALITY_TO_AUTOPROCESSOR_MAPPING=OtherClasses()),
    ):
        yield
