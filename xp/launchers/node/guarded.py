"""Processes behind guard.py, which ends all of them when its standard input closes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from xp.worker.nodes import free_port

GUARD: Final = Path(__file__).parent / "guard.py"
START_RAY: Final = """
import signal, time
from ray._private import services
from ray.scripts.scripts import cli

def patient(*words, ask=services.get_node, **named):
    end = time.monotonic() + 120
    while True:
        try:
            return ask(*words, **named)
        except RuntimeError:
            if time.monotonic() > end:
                raise
            time.sleep(0.5)

services.get_node = patient
cli(standalone_mode=False)
signal.pause()
"""
"""`ray ...` for `python -c`. Not `--block`, which ends everything when one process of Ray's ends, also Ray Client's
server, which a busy machine fails. Ray asks for its own node for 30 s, a constant in its code: here for two minutes."""
RAY_PATIENCE: Final = {
    "RAY_NUM_REDIS_GET_RETRIES": "150",
    "RAY_DASHBOARD_SUBPROCESS_MODULE_WAIT_READY_TIMEOUT": "300",
}
"""Variables of `ray start`: how often a worker asks, every 2 s, for a head whose own node is not known yet; and seconds
that a part of the dashboard may take to start."""


def agent_ports(address: str) -> list[str]:
    """Options of `ray start` with ports of a node's agents.

    A raylet waits for the ports that its agents select, and aborts (`Timed out waiting for file`) where their imports
    take too long, as on a busy machine or a slow filesystem.
    """
    names = ("metrics-export", "dashboard-agent-grpc", "dashboard-agent-listen", "runtime-env-agent")
    return [f"--{name}-port={free_port(address)}" for name in names]


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
