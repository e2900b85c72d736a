"""Runs a short program of xp's in any Python, so that this process loads no torch and no trainer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from xp.lib.digest import file_digest, text_digest

TIMEOUT_S: Final = 180.0
"""Longest time of a program, in seconds, unless its caller gives one."""
ROOT: Final = str(Path(__file__).resolve().parents[2])
"""The directory of the package xp."""


def last_line(
    python: str,
    words: Sequence[str],
    variables: Mapping[str, str],
    timeout_s: float | None = None,
    text: str = "",
) -> str:
    """The last line that a program prints; empty if it prints nothing.

    Args:
        python: the interpreter; it finds this xp, and the directories of the user's PYTHONPATH.
        words: its arguments, each shorter than the 128 kB that Linux lets one have: the program, and the program's.
        variables: added to this process's variables.
        timeout_s: None means TIMEOUT_S.
        text: given to its standard input, of any length.

    Raises:
        OSError: the interpreter cannot be started.
        subprocess.CalledProcessError: the program failed; `stderr` is its text.
        subprocess.TimeoutExpired: it took longer.
    """
    paths = filter(None, (ROOT, os.environ.get("PYTHONPATH")))
    run = subprocess.run(
        [python, *words],
        input=text,
        capture_output=True,
        encoding="utf-8",
        timeout=timeout_s or TIMEOUT_S,
        check=True,
        env={
            **os.environ,
            "PYTHONIOENCODING": "utf-8",
            "PYTHONPATH": os.pathsep.join(paths),
            **variables,
        },
    )
    return run.stdout.strip().rpartition("\n")[2]


def answer_of(program: str, directory: Path, *words: str, python: str | None = None) -> Any:
    """The answer of a program of xp's about a checkpoint. None: it cannot be asked here.

    Args:
        program: module that prints its result as JSON.
        directory: of the checkpoint.
        words: its other arguments.
        python: the interpreter. None means xp's own.
    """
    if python is None and any(find_spec(name) is None for name in ("torch", "transformers")):
        return None
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
