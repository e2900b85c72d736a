"""The measure's model on disk, made once a session."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path

from xp.builtin.model.tiny_model import SHIPPED
from xp.worker.parity.model import make_model


@cache
def model_directory() -> Path:
    directory = Path(tempfile.mkdtemp(prefix="xp-parity-model-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    make_model(directory, SHIPPED)
    return directory
