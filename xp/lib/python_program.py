"""Runs a short program of xp's in any Python, so that this process loads no torch and no trainer."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

TIMEOUT_S: Final = 180.0
"""Longest time of a program, in seconds, unless its caller gives one."""
ROOT: Final = str(Path(__file__).resolve().parents[2])
"""The directory of the package xp."""


def last_line(
    python: str,
    words: Sequence[str],
    variables: Mapping[str, str],
    timeout_s: float | None = None,
) -> str:
    """The last line that a program prints; empty if it prints nothing.

    Args:
        python: the interpreter; it finds this xp, and the directories of the user's PYTHONPATH.
        words: its arguments: the program, and the program's arguments.
        variables: added to this process's variables.
        timeout_s: None means TIMEOUT_S.

    Raises:
        OSError: the interpreter cannot be started.
        subprocess.CalledProcessError: the program failed; `stderr` is its text.
        subprocess.TimeoutExpired: it took longer.
    """
    paths = filter(None, (ROOT, os.environ.get("PYTHONPATH")))
    run = subprocess.run(
        [python, *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s or TIMEOUT_S,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), **variables},
    )
    return run.stdout.strip().rpartition("\n")[2]
