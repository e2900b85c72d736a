"""Runs programs of the doctor's in the trainer's Python."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from typing import Final

from xp.planning.stages import QUIET

TIMEOUT_S: Final = 120.0


def answer_of(
    python: str, words: Sequence[str], variables: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    """Runs a Python with these words, and these variables beside this process's; returns it ended, whatever its code.

    Raises:
        subprocess.TimeoutExpired: it takes longer than `TIMEOUT_S`.
    """
    environ = {**os.environ, **QUIET, **variables}
    return subprocess.run(
        [python, *words],
        env=environ,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
