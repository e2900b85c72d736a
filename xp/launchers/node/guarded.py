"""Processes behind guard.py, which ends all of them when its standard input closes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

GUARD: Final = Path(__file__).parent / "guard.py"
START_RAY: Final = "import signal; from ray.scripts.scripts import cli; cli(standalone_mode=False); signal.pause()"
"""`ray ...` for `python -c`. Not `--block`, which ends everything when one process of Ray's ends, also Ray Client's
server, which a busy machine fails."""
RAY_PATIENCE: Final = {"RAY_NUM_REDIS_GET_RETRIES": "150"}
"""Variables of `ray start`: a worker asks every 2 s, so often, for a head that answers before its own node is known."""


def behind_guard(command: Sequence[str], grace_s: float) -> list[str]:
    """The command that runs another one behind the guard; its standard input must be a pipe.

    Args:
        grace_s: seconds between TERM and KILL.
    """
    return [sys.executable, "-E", "-P", str(GUARD), str(grace_s), *command]


def end_guarded(process: subprocess.Popen[bytes], patience_s: float) -> None:
    """End a guard and every process behind it; the guard itself is killed where it takes longer than that."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(patience_s)
    except subprocess.TimeoutExpired:
        process.kill()
