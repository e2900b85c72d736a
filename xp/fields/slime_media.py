"""Checkpoints with parts for pictures and sound under Slime, which trains their text network alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from xp.lib.models.files import config_of
from xp.lib.models.network import MEDIA, TEXT_TWINS
from xp.spec import RunSpec

LOADED: Final[Mapping[str, str]] = {
    "qwen3_5_moe_text": "qwen3_5_moe",
    "qwen3_5_text": "qwen3_5",
}
"""Text network -> the checkpoint of it that Slime itself loads (hf_to_megatron/__init__.py `_LOADERS`)."""
TRIED: Final = ("glm4v", "glm4v_moe", "kimi_k25", "qwen3_vl")
"""Other checkpoints that tests/trainers/test_slime_media.py loads, and whose names SGLang's own class knows."""
FROZEN: Final = (
    "Megatron has the text network alone; parts for pictures and sound are published as they were."
)


def checkpoint_with_media(spec: RunSpec) -> str | None:
    """The `model_type` of a checkpoint with parts for pictures or sound. None means that it has none, or that its
    config.json is not known."""
    shape = spec.model.architecture
    if shape is not None and shape.model_type in LOADED:
        return LOADED[shape.model_type]
    if spec.model.path is None:
        return None
    config = config_of(spec.model.path, Path(spec.outputs), spec.model.revision)
    if config is None or not any(config.get(key) for key in MEDIA):
        return None
    return str(config.get("model_type"))


def media_note(spec: RunSpec) -> str:
    """What a plan says of a checkpoint with media; empty for a model of text alone."""
    kind = checkpoint_with_media(spec)
    if kind is None:
        return ""
    if kind in LOADED.values():
        return FROZEN
    shape = spec.model.architecture
    family = "" if shape is None else TEXT_TWINS.get(shape.model_type, shape.model_type)
    note = f"{FROZEN} Slime has no loader of {kind}; its code of {family} reads and writes the text network."
    if kind in TRIED:
        return note
    return f"{note} Not tried: whether SGLang takes an update of {kind}."
