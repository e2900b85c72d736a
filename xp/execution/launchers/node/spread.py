"""Starts a stage's program on each of its nodes, from the main one: by `srun` inside a batch job, or by Ray.

Where a service starts a script on each node, the main node starts its own part alone.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from xp.errors import ExitCode, XpError
from xp.execution.launchers.node.job_spec import JOB_SPEC, JobSpec, Spread
from xp.execution.launchers.node.program import piped
from xp.lib.loopback import free_port
from xp.worker.nodes import MAIN

MEMBER = "xp.execution.launchers.node.member"
RAY_MEMBERS = "xp.execution.launchers.node.ray_members"
ENDED = "node_*.json"
"""Files beside the log with the result of each node's program that ended by itself."""
HERE = "here"
"""Way of starting the program on this node alone: the service that started this one starts the others."""
SIGNALS = {
    # srun converts TERM to KILL for its tasks, but passes USR2 on.
    "srun": (signal.SIGUSR2, signal.SIGTERM),
    "ray": (signal.SIGTERM, signal.SIGKILL),
    HERE: (signal.SIGTERM, signal.SIGKILL),
}


def start_all(spec: JobSpec) -> subprocess.Popen[bytes]:
    """Starts the program on all nodes; the returned process ends when all have ended.

    Raises:
        XpError: RUNTIME if this node's address cannot be found.
    """
    assert spec.spread is not None
    directory = Path(spec.root, spec.directory)
    for file in directory.glob(ENDED):  # of a start before a requeue
        file.unlink()
    if spec.spread.by == HERE:
        spec.write(Path(spec.root))  # a service may keep it elsewhere
    return piped(command(spec, str(directory / JOB_SPEC)), spec.root, os.environ)


def command(spec: JobSpec, job_spec: str) -> list[str]:
    """The command that starts the program on all nodes."""
    spread = spec.spread
    assert spread is not None
    if spread.by == "ray":
        return [sys.executable, "-m", RAY_MEMBERS, job_spec]
    if spread.by == HERE:
        return [sys.executable, "-m", MEMBER, job_spec, os.environ[MAIN]]
    address = "127.0.0.1"
    if spread.count > 1:
        address = node_address()
    return by_srun(spread, job_spec, f"{address}:{free_port(address)}")


def by_srun(spread: Spread, job_spec: str, main: str) -> list[str]:
    """The command with which a batch job starts a member on each node: one task with all its resources, of which all
    end if one fails.

    Args:
        spread: the stage's nodes.
        job_spec: file of its job spec.
        main: `address:port` of the main node.
    """
    python = sys.executable
    if spread.is_contained:
        python = "python3"
    return [
        "srun",
        f"--nodes={spread.count}",
        f"--ntasks={spread.count}",
        "--ntasks-per-node=1",
        f"--cpus-per-task={spread.num_cpus}",
        "--mem=0",
        "--kill-on-bad-exit=1",
        "--unbuffered",
        "--export=ALL",
        *spread.srun,
        *spread.container,
        python,
        "-m",
        MEMBER,
        job_spec,
        main,
    ]


def node_address() -> str:
    """The address of this node for the other nodes of a batch job, as Slurm itself uses it."""
    name = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    asking = ["scontrol", "--oneliner", "show", "node", name]
    with suppress(OSError, subprocess.SubprocessError):
        text = subprocess.run(asking, capture_output=True, text=True, timeout=60, check=True).stdout
        fields = dict(part.split("=", 1) for part in text.split() if "=" in part)
        name = fields.get("NodeAddr") or name
    try:
        return socket.gethostbyname(name)
    except OSError as error:
        raise XpError(
            f"the address of node {name} is not known here: {error}", ExitCode.RUNTIME
        ) from None


def first_failure(directory: Path) -> int | None:
    """Exit code of the node that failed first; None if no node recorded a failure."""
    failures: list[tuple[float, int]] = []
    for file in directory.glob(ENDED):
        with suppress(OSError, ValueError, KeyError, TypeError):
            value = json.loads(file.read_text(encoding="utf-8"))
            failures.append((float(value["ended"]), int(value["code"])))
    return next((code for _, code in sorted(failures) if code), None)
