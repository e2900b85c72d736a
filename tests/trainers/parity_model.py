"""The measure's model on disk, made once a session."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from tools.parity.model import make_model
from xp.lib.atomic import private_directory
from xp.worker.tiny_model import SHIPPED


@cache
def model_directory() -> Path:
    directory = private_directory("parity-model")
    make_model(directory, SHIPPED)
    return directory
