"""Starts and ends processes under guard.py, which ends all of them when its standard input closes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

GUARD: Final = Path(__file__).parent / "guard.py"
RAY: Final = ("-m", "ray.scripts.scripts")
"""Words after a Python that run Ray's command line."""
RAY_GRACE_S: Final = 10.0
"""Seconds between TERM and KILL for a cluster of Ray's."""


def behind_guard(command: Sequence[str], grace_s: float) -> list[str]:
    """The command that runs another one under the guard; its standard input must be a pipe.

    Args:
        grace_s: seconds between TERM and KILL.
    """
    return [sys.executable, "-E", "-P", str(GUARD), str(grace_s), *command]


def end_guarded(process: subprocess.Popen[bytes]) -> None:
    """Ends a guard and all its processes, within the guard's grace period."""
    assert process.stdin is not None
    process.stdin.close()
    process.wait()
