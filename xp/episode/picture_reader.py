"""The model's processor of pictures: placeholders in the tokens, and the pixels that belong to them.

The ids that it makes are those of the engine and of the update, and both get the pixels from here: two backends of one
processor differ by up to 0.015.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from threading import Lock
from typing import Any, Final

from xp.envs.picture_store import PictureStore
from xp.errors import ExitCode, XpError
from xp.lib.digest import text_digest
from xp.lib.packages import require
from xp.lib.patching import replaced
from xp.spec.model import Images

OTHER: Final = "choose another model that reads pictures, or set model.images=null"
MAX_BYTES: Final = 640 * 2**20
"""Largest size of the tensors that are kept, since the turns and the episodes of a group repeat pictures; Qwen3-VL has 5 MB
of a picture of 200,704 pixels, SmolVLM up to 53 MB."""
IDS: Final = "input_ids"
PIXELS: Final = "pixel_values"
GRID: Final = "image_grid_thw"
"""Key of the numbers of patches of each picture, in time, height and width, of Qwen2-VL's kind."""
PROBES: Final = ((64, 64), (160, 64))
"""Sizes of the pictures with which a processor is asked for its form: some make several parts of the second one."""


class PictureMismatch(Exception):
    """A conversation has other placeholders than its pictures have tokens, or an engine has read other tokens of it."""


@dataclass(frozen=True)
class InputForm:
    """What a processor makes of pictures."""

    placeholder_id: int
    """Token that stands for a part of a picture, as often as the picture has features."""
    special_ids: tuple[int, ...]
    """Special tokens of a picture, with those at its ends, its rows and its columns."""
    types: str | None
    """Key of the types of all tokens, which some models read. None means that there is none."""
    dims: Mapping[str, int]
    """Key of each tensor of pictures -> dimension in which the tensors of several pictures are joined."""
    sample: tuple[int, ...]
    """Tokens of the pictures of PROBES."""


class PictureReader:
    """Pictures as a model reads them: the model's own processor repeats placeholders and makes the tensors.

    Args:
        processor: transformers' processor of the model.
        store: the pictures.
        images: limits.

    Raises:
        XpError: (PLAN) the processor does not repeat a placeholder, or its tensors of two pictures are not those of
            each one, joined.
    """

    def __init__(self, processor: Any, store: PictureStore, images: Images) -> None:
        self.processor = processor
        self.store = store
        self.images = images
        self.form = input_form(processor)
        self.placeholder_id = self.form.placeholder_id
        """Token that stands for a part of a picture."""
        decoder = processor.tokenizer.added_tokens_decoder
        marks = [decoder[token].content for token in self.form.special_ids if token in decoder]
        marks += [processor.image_token, getattr(processor, "video_token", None)]
        self._placeholders = tuple(dict.fromkeys(mark for mark in marks if mark))
        self._kept: dict[str, Mapping[str, Any]] = {}
        """Tensors of pictures by digest, those that were used last at the end."""
        self._lock = Lock()
        self.num_tokens = cache(self._count_tokens)
        """Function from a picture's digest to the number of its features."""

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
        """Digest of the processor and the limits, which determine a picture's tokens."""
        settings = {
            name: value
            for name, value in self.processor.image_processor.to_dict().items()
            if not name.endswith("processor_type")
        }
        content = [settings, self.images.max_pixels, self.form.sample]
        return text_digest(json.dumps(content, sort_keys=True, default=str))

    def placeholder_in(self, text: str) -> str | None:
        """The placeholder of a picture or a video in a text of a message; None if there is none."""
        return next((mark for mark in self._placeholders if mark in text), None)

    def ids(self, text: str, digests: Sequence[str]) -> list[int]:
        """Token ids of a rendered text, whose placeholders the processor expands once.

        Args:
            text: has one placeholder for each picture.
            digests: the pictures, in their order.

        Raises:
            ValueError: the text has another number of placeholders.
            XpError: (TASKS) a picture is not in the store.
        """
        num_places = text.count(self.processor.image_token)
        if num_places != len(digests):
            raise ValueError(f"it renders {num_places} of {len(digests)} images")
        images = [self.image(digest) for digest in digests]
        ids = processed(self.processor, text, images)[IDS][0].tolist()
        fault = self.fault(ids, digests)
        if fault is not None:
            raise ValueError(fault)
        return [*ids]

    def image(self, digest: str) -> Any:
        """A picture as PIL's image, as it goes into the processor."""
        return self.store.image(digest, self.images.max_pixels)

    def pixels(self, digests: Sequence[str]) -> dict[str, Any]:
        """The tensors of pictures, in their order; empty without pictures."""
        parts = [self._picture(digest) for digest in digests]
        if not parts:
            return {}
        return {
            key: joined([part[key] for part in parts], dim) for key, dim in self.form.dims.items()
        }

    def inputs(self, ids: Any, digests: Sequence[str]) -> dict[str, Any]:
        """What the model's forward pass gets beside the tokens; empty without pictures.

        Args:
            ids: tokens of conversations, [rows, tokens].
            digests: the pictures of all rows, in their order.
        """
        inputs = self.pixels(digests)
        if inputs and self.form.types is not None:
            types = self.processor.create_mm_token_type_ids(ids.tolist())
            inputs[self.form.types] = ids.new_tensor(types)
        return inputs

    @cached_property
    def blank(self) -> Mapping[str, Any]:
        """The tensors of one small picture that is in no store."""
        made = processed(self.processor, self.processor.image_token, [blank_image(PROBES[0])])
        return {key: made[key] for key in self.form.dims}

    def no_pixels(self) -> dict[str, Any]:
        """`pixels` of no picture: tensors of the right form without lines."""
        return {key: tensor[:0] for key, tensor in self.blank.items()}

    def row_pixels(self, digests: Sequence[str]) -> dict[str, Any]:
        """`pixels` of a row, for batches that have such tensors of each row."""
        return self.pixels(digests) or self.no_pixels()

    def within(
        self, ids: Sequence[int], digests: Sequence[str], limit: int
    ) -> tuple[int, list[str]]:
        """Number of the first tokens that end within a limit and not within a picture, and their pictures.

        Args:
            ids: all tokens of a conversation.
            digests: its pictures.
            limit: largest number of tokens.
        """
        places = [at for at, token in enumerate(ids[:limit]) if token == self.placeholder_id]
        num_left = len(places)
        whole: list[str] = []
        for digest in digests:
            num_tokens = self.num_tokens(digest)
            if num_tokens > num_left:
                break
            num_left -= num_tokens
            whole.append(digest)
        if num_left == 0:
            return limit, whole
        end = places[-num_left]
        while end > 0 and ids[end - 1] in self.form.special_ids:
            end -= 1
        return end, whole

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
            f"the tokens of pictures differ: the tokens have {num_ids} placeholders of images, and the"
            f" pixels of {len(digests)} images are {sum(expected)}"
        )

    def check(self, ids: Sequence[int], digests: Sequence[str]) -> None:
        """Raises PictureMismatch with the sentence of `fault`, if there is one."""
        fault = self.fault(ids, digests)
        if fault is not None:
            raise PictureMismatch(fault)

    def _picture(self, digest: str) -> Mapping[str, Any]:
        """What the processor makes of a picture alone; kept, as long as all together have at most MAX_BYTES."""
        with self._lock:
            tensors = self._kept.pop(digest, None)
        if tensors is None:
            tensors = processed(self.processor, self.processor.image_token, [self.image(digest)])
        with self._lock:
            self._kept[digest] = tensors
            while num_bytes(self._kept.values()) > MAX_BYTES and len(self._kept) > 1:
                del self._kept[next(iter(self._kept))]
        return tensors

    def _count_tokens(self, digest: str) -> int:
        return int((self._picture(digest)[IDS] == self.placeholder_id).sum())


def num_bytes(pictures: Iterable[Mapping[str, Any]]) -> int:
    """Size of the tensors of pictures."""
    return sum(tensor.nbytes for picture in pictures for tensor in picture.values())


def processed(processor: Any, text: str, images: Sequence[Any]) -> Mapping[str, Any]:
    """What a processor makes of a text with placeholders and its pictures: tensors, by their names in the model."""
    made: Mapping[str, Any] = processor(
        text=[text], images=[list(images)], add_special_tokens=False, return_tensors="pt"
    )
    return made


def blank_image(size: tuple[int, int]) -> Any:
    """A grey picture, as PIL's image."""
    from PIL import Image

    return Image.new("RGB", size, "grey")


def joined(parts: Sequence[Any], dim: int) -> Any:
    """Tensors of several pictures as one; smaller ones are filled with zeros in the other dimensions, as processors do."""
    import torch
    from torch.nn.functional import pad

    largest = [max(sizes) for sizes in zip(*(part.shape for part in parts), strict=True)]
    padded = []
    for part in parts:
        missing = [most - size for most, size in zip(largest, part.shape, strict=True)]
        missing[dim] = 0
        if any(missing):
            # torch counts from the last dimension, before and after.
            amounts = [amount for size in reversed(missing) for amount in (0, size)]
            part = pad(part, amounts)
        padded.append(part)
    return torch.cat(padded, dim)


def input_form(processor: Any) -> InputForm:
    """What a processor makes of pictures, found out with two pictures, alone and together.

    Raises:
        XpError: (PLAN) see PictureReader.
    """
    name = type(processor).__name__
    images = [blank_image(size) for size in PROBES]
    mark = getattr(processor, "image_token", None)
    if not isinstance(mark, str):
        raise XpError(
            f"model.images: {name} has no placeholder of pictures; {OTHER}", ExitCode.PLAN
        )
    try:
        single = [processed(processor, mark, [image]) for image in images]
        both = processed(processor, f"{mark}{mark}", images)
    except (ImportError, TypeError, ValueError, KeyError, IndexError) as error:
        reason = " ".join(str(error).split())[:200]
        raise XpError(
            f"model.images: {name} reads no picture ({reason}); {OTHER}", ExitCode.PLAN
        ) from None
    shape = both[IDS].shape
    of_tokens = [key for key, value in both.items() if value.shape == shape]
    dims = {}
    for key in both.keys() - of_tokens:
        dim = joined_dim([made[key] for made in single], both[key])
        if dim is None:
            raise XpError(
                f"model.images: {name} makes other {key} of two pictures than of each one; {OTHER}",
                ExitCode.PLAN,
            )
        dims[key] = dim
    sample = both[IDS][0].tolist()
    image_ids = [token for token in processor.image_token_ids if token in sample]
    decoder = processor.tokenizer.added_tokens_decoder
    special = {token for token in sample if token in decoder and decoder[token].special}
    types = [key for key in of_tokens if key.endswith("token_type_ids") and both[key].any()]
    if not image_ids or not dims:
        raise XpError(f"model.images: {name} repeats no placeholder; {OTHER}", ExitCode.PLAN)
    return InputForm(
        placeholder_id=max(image_ids, key=sample.count),
        special_ids=tuple(sorted({*image_ids, *special})),
        types=types[0] if types else None,
        dims=dict(sorted(dims.items())),
        sample=tuple(sample),
    )


def joined_dim(parts: Sequence[Any], both: Any) -> int | None:
    """The dimension in which the tensors of two pictures, joined, are those of both; None if there is none."""
    for dim in range(both.ndim):
        whole = joined(parts, dim)
        if whole.shape == both.shape and whole.equal(both):
            return dim
    return None


def load_processor(place: str | Path, tokenizer: Any) -> Any:
    """transformers' processor of a model with its image processor of PIL, the same on every machine.

    Args:
        place: Hugging Face id or directory.
        tokenizer: the model's tokenizer, which it gets.

    Raises:
        XpError: (PLAN) the model has none.
    """
    from transformers import AutoProcessor

    processor = None
    fault = "reads text alone"
    try:
        with _without_videos():
            processor = AutoProcessor.from_pretrained(place, backend="pil")
    except (OSError, ValueError, KeyError, ImportError) as error:
        fault = f"has no processor of pictures ({' '.join(str(error).split())[:200]})"
    if processor is None or not hasattr(processor, "image_processor"):
        raise XpError(f"model.images: {place} {fault}; {OTHER}", ExitCode.PLAN)
    processor.tokenizer = tokenizer
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
