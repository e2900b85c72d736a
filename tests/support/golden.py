"""Native keys of a plan, and their comparison with the reviewed ones."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from xp.planning.job import Stage


def native(backend: str, stages: Iterable[Stage]) -> Any:
    """The keys, or flags, that the trainer itself receives, with their values."""
    (train,) = (stage for stage in stages if stage.name == "train")
    config = json.loads(
        next(text for name, text in train.job.files.items() if name.endswith("/config.json"))
    )
    places = {
        "trl": lambda: config["grpo"],
        "skyrl": lambda: config["native_keys"],
        "slime": lambda: config["command"]["flags"],
    }
    return places[backend]()


def check_reviewed(file: Path, text: str) -> None:
    """Compares a text with the reviewed one, or writes it."""
    if os.environ.get("XP_GOLDEN") == "write":
        file.write_text(text)
    assert text == file.read_text(), (
        "what a trainer receives changed: run make golden and review the diff"
    )
