"""Starts and ends processes under guard.py, which ends all of them when its standard input closes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from xp.security import start_ray
from xp.security.own_ray import NICENESS
from xp.worker.nodes import free_port

GUARD: Final = Path(__file__).parent / "guard.py"
START_RAY: Final = ("-P", str(Path(start_ray.__file__)))
"""Words after a Python that run `ray ...`; the program stays."""
START_RAY_ENV: Final = {
    "RAY_NUM_REDIS_GET_RETRIES": "150",
    "RAY_DASHBOARD_SUBPROCESS_MODULE_WAIT_READY_TIMEOUT": "300",
    NICENESS: "0",
}
"""Environment variables of `ray start`: number of requests, every 2 s, of a worker to a head that is starting; seconds
that a part of the dashboard may take to start; niceness of the workers, in addition to the job's."""


def agent_ports(address: str) -> list[str]:
    """Options of `ray start` with ports for a node's agents.

    Without them, a raylet waits for the ports that its agents select, and aborts (`Timed out waiting for file`) if
    their imports take too long, as on a busy machine or a slow filesystem.
    """
    names = ("metrics-export", "dashboard-agent-grpc", "dashboard-agent-listen", "runtime-env-agent")
    return [f"--{name}-port={free_port(address)}" for name in names]


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
