"""Untrained networks with eyes, of a hundred thousand parameters, and pictures of shapes for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from tools.tiny_vlm.build import write_model
from xp.envs.base import Message, Picture
from xp.envs.builtin.shapes_mini import drawn, puzzle
from xp.envs.picture_store import PictureStore
from xp.envs.pictures import with_pictures
from xp.episode.picture_reader import PictureReader
from xp.episode.tokens import ChatTokens
from xp.spec.model import Images

FAMILIES: Final = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")
TEXT: Final = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "head_dim": 16,
}
VISION: Final = {"width": 32, "depth": 1, "num_heads": 2}
IMAGES: Final = Images(max_pixels=200_704, per_episode=4)
SPREAD: Final = 0.05
"""Standard deviation of the weights, so that a picture changes log-probabilities by more than 1e-3 nats."""


def vision_model(family: str, directory: Path, *, spread: float = SPREAD) -> Path:
    """Writes an untrained model with its tokenizer and processor; returns its directory."""
    return write_model(family, directory, TEXT, VISION, spread=spread)


def seeing_chat(model: Path, store: PictureStore, images: Images = IMAGES) -> ChatTokens:
    """The tokenizer of a model with its processor."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    reader = PictureReader.load(model, store, images, tokenizer)
    return ChatTokens(tokenizer, None, pictures=reader)


def picture(store: PictureStore, name: str) -> Picture:
    """A board of shapes."""
    return store.keep(drawn(puzzle(name)[0]))


def message(role: str, *parts: Any) -> Message:
    """A message of texts and pictures."""
    return with_pictures(Message(role=role, content=""), parts)
