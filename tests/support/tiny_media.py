"""Tiny checkpoints with a vision part, whose text network is trained in tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from tests.support.families import QWEN_VISION as QWEN_VISION
from tests.support.families import write_family

FAMILIES: Final = ("qwen3_vl", "gemma3", "qwen3_5")


def media_model(family: str, directory: Path, **text: Any) -> Path:
    """Writes an untrained model of a family with a vision part, as `write_family` does."""
    return write_family(family, directory, **text)
