"""What a processor makes of pictures, and which processors are refused."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from xp.envs.picture_store import PictureStore
from xp.episode.picture_reader import PictureReader, input_form
from xp.errors import XpError
from xp.spec.model import Images


class DoublingProcessor:
    """Makes other pixels of two pictures than of each one."""

    image_token = "<image>"
    image_token_ids = (7,)
    tokenizer = SimpleNamespace(added_tokens_decoder={})

    def __call__(self, text: list[str], images: list[list[Any]], **_: Any) -> dict[str, Any]:
        import torch

        num_images = len(images[0])
        ids = torch.full((1, text[0].count("<image>")), 7)
        return {"input_ids": ids, "pixel_values": torch.full((num_images, 3), num_images)}


def test_a_processor_whose_pictures_depend_on_each_other_is_refused() -> None:
    with pytest.raises(XpError, match="other pixel_values of two pictures than of each one"):
        input_form(DoublingProcessor())


class CountingProcessor(DoublingProcessor):
    """Makes the same pixels of each picture, and counts its calls."""

    calls = 0

    def __call__(self, text: list[str], images: list[list[Any]], **options: Any) -> dict[str, Any]:
        import torch

        self.calls += 1
        made = super().__call__(text, images, **options)
        return made | {"pixel_values": torch.ones(len(images[0]), 100)}


def test_the_picture_of_passes_without_one_is_made_once(tmp_path: Path) -> None:
    processor = CountingProcessor()
    reader = PictureReader(processor, PictureStore(tmp_path), Images(max_pixels=9, per_episode=2))
    before = processor.calls
    for _ in range(3):
        assert reader.blank["pixel_values"].shape == (1, 100)
        assert reader.no_pixels()["pixel_values"].shape == (0, 100)
    assert processor.calls - before == 1
