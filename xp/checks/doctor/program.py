"""Runs programs of the doctor's in the trainer's Python."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from typing import Final

from xp.composition import ROOT
from xp.errors import XpError
from xp.execution.launchers.preflight import interpreter
from xp.planning.runtime import trainer_runtime
from xp.planning.stages import QUIET
from xp.spec import RunSpec

TIMEOUT_S: Final = 120.0


def trainers_interpreter(spec: RunSpec) -> str | None:
    """The interpreter of the trainer's programs. None means that this machine has none."""
    try:
        return interpreter(trainer_runtime(spec, ()))
    except XpError:
        return None


def answer_of(
    python: str, words: Sequence[str], variables: dict[str, str], stdin: str = ""
) -> subprocess.CompletedProcess[str]:
    """Runs a Python with these words, and these variables beside this process's; returns it ended, whatever its code.

    Args:
        python: the interpreter.
        words: its arguments, each shorter than the 128 kB that Linux lets one have.
        variables: further ones of its environment.
        stdin: text for it of any length.

    Raises:
        subprocess.TimeoutExpired: it takes longer than `TIMEOUT_S`.
    """
    environ = {
        **os.environ,
        **QUIET,
        "PYTHONIOENCODING": "utf-8",
        "PYTHONPATH": str(ROOT),
        **variables,
    }
    return subprocess.run(
        [python, *words],
        env=environ,
        input=stdin,
        capture_output=True,
        encoding="utf-8",
        timeout=TIMEOUT_S,
        check=False,
    )
