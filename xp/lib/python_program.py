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
