"""Starts and ends processes under guard.py, which ends all of them when its standard input closes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from xp.security import start_ray
from xp.security.own_ray import NICENESS

GUARD: Final = Path(__file__).parent / "guard.py"
GUARD_S: Final = 60.0
"""Seconds beyond the grace period that a guard may need on a busy machine; without it, processes of the job remain."""
START_RAY: Final = ("-P", str(Path(start_ray.__file__)))
"""Words after a Python that run `ray ...`; the program stays."""
START_RAY_ENV: Final = {
    **start_ray.PATIENCE,
    "RAY_NUM_REDIS_GET_RETRIES": "150",
    NICENESS: "0",
}
"""Environment variables of `ray start`: Ray's own limits; number of requests, every 2 s, of a worker to a head that is
starting; niceness of the workers, in addition to the job's."""


def behind_guard(command: Sequence[str], grace_s: float) -> list[str]:
    """The command that runs another one under the guard; its standard input must be a pipe.

    Args:
        grace_s: seconds between TERM and KILL.
    """
    return [sys.executable, "-E", "-P", str(GUARD), str(grace_s), *command]


def end_guarded(process: subprocess.Popen[bytes], patience_s: float) -> None:
    """Ends a guard and all its processes; after `patience_s` seconds the guard itself is killed."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(patience_s)
    except subprocess.TimeoutExpired:
        process.kill()
