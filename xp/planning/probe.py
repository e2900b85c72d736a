"""Asks the packages that train about a checkpoint, in a short process, so that a plan itself loads no torch.

A process that has loaded transformers already, as a notebook does, asks them itself: the process takes 5 s.
"""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from xp.lib.digest import file_digest, text_digest
from xp.lib.python_program import last_line


def answer_of(program: str, directory: Path, *words: str, python: str | None = None) -> Any:
    """The answer of a program of xp's about a checkpoint. None: it cannot be asked here.

    Args:
        program: module with a function `answer(directory, *words)`, which prints its result as JSON.
        directory: of the checkpoint.
        words: its other arguments.
        python: the interpreter. None means xp's own.
    """
    if python is None and any(find_spec(name) is None for name in ("torch", "transformers")):
        return None
    if python in (None, sys.executable) and "transformers" in sys.modules:
        return import_module(program).answer(str(directory), *words)
    return _asked(program, str(directory), words, python or sys.executable, _digest(directory))


def _digest(directory: Path) -> str:
    """Digest of the config.json and of the sizes and times of the weights, which are too large to be read."""
    weights = sorted((*directory.glob("*.safetensors*"), *directory.glob("*.bin*")))
    states = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in weights]
    return text_digest(f"{file_digest(directory / 'config.json')}{states}")


@cache
def _asked(
    program: str, directory: str, words: tuple[str, ...], python: str, _digest: str
) -> dict[str, Any] | None:
    """Runs the program once for a checkpoint of this digest; the training's stage checks what a plan could not."""
    command = ("-m", program, directory, *words)
    try:
        return dict(json.loads(last_line(python, command, {"HF_HUB_OFFLINE": "1"})))
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
