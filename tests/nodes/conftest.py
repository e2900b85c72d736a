"""Two nodes on this machine (tests/slurm/nodes.sh): network namespaces, each with a Slurm daemon or a Ray."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from xp.execution.launchers.node.ray_cluster import DEFAULTS
from xp.lib import private_ray, processes

STATE = Path(os.environ.get("XP_NODES", "/var/lib/xp-slurm-nodes"))
ADDRESSES = ("10.77.0.1", "10.77.0.2")
SMALL = ("hardware.num_nodes=2", "hardware.num_cpus=2", "hardware.memory_gb=4")
"""Two nodes, and the size of each."""
DEADLINE_S = 1800.0
"""Limit of any wait: no step here may depend on the machine's speed, so only a hang reaches it."""
QUICK = ("training.num_steps=2", "training.micro_batch_size=32", "env.held_out.num_tasks=32")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    why = f"no cluster of two nodes here (make test-nodes); {STATE}/slurm.conf"
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.timeout(2 * DEADLINE_S))
            if os.environ.get("SLURM_CONF") != f"{STATE}/slurm.conf":
                item.add_marker(pytest.mark.skip(reason=why))


@dataclass(frozen=True)
class RayNodes:
    address: str
    """The dashboard's URL."""
    environ: Mapping[str, str]
    """For clients: the token."""


def on_node(number: int, *argv: str) -> list[str]:
    return ["nsenter", f"--net=/run/netns/xp{number}", *argv]


def xp(
    outputs: Path,
    *overrides: str,
    environ: Mapping[str, str] | None = None,
    timeout_s: float = DEADLINE_S,
) -> str:
    """Run xp to exit 0; returns what it printed."""
    argv = [sys.executable, "-m", "xp", f"outputs={outputs}", *overrides]
    run = subprocess.run(
        argv,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        env={**os.environ, **(environ or {})},
        errors="replace",
    )
    assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-4000:]
    return run.stdout


def ray_nodes(directory: Path, python: Sequence[str], *start: str) -> Iterator[RayNodes]:
    """A Ray cluster of both nodes, as docs/launchers.md says: a token, and the cluster's own interface."""
    token = directory / "token"
    token.touch(mode=0o600)
    token.write_text(secrets.token_hex(32))
    variables = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}
    path = f"{Path(python[0]).parent}:{os.environ['PATH']}"
    head = ADDRESSES[0]
    port = 26379
    words = [
        (
            "--head",
            f"--port={port}",
            f"--dashboard-host={head}",
            f"--temp-dir=/tmp/xp-nodes-{os.getpid()}",
        ),
        (f"--address={head}:{port}",),
    ]
    commands = [
        [
            *(
                *python,
                *private_ray.COMMAND,
                "start",
                "--block",
                *words[at],
                f"--node-ip-address={address}",
            ),
            *("--disable-usage-stats", "--min-worker-port=0", "--max-worker-port=0", *start),
        ]
        for at, address in enumerate(ADDRESSES)
    ]
    environ = {**os.environ, **DEFAULTS, **variables, "PATH": path}

    def begin(number: int) -> subprocess.Popen[bytes]:
        with (directory / f"ray_{number}.log").open("ab") as log:
            return processes.start(
                on_node(number, *commands[number - 1]),
                env=environ,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    started = {1: begin(1)}

    def again() -> None:
        """Ray gives a raylet 30 s, which a busy machine may take for longer."""
        for number, process in started.items():
            if process.poll() is not None:
                started[number] = begin(number)

    try:
        _wait_for(1, head, token.read_text(), again)
        started[2] = begin(2)
        _wait_for(2, head, token.read_text(), again)
        yield RayNodes(f"http://{head}:8265", variables)
    finally:
        for process in reversed(started.values()):
            processes.end(process)


def _wait_for(count: int, head: str, token: str, again: Callable[[], None]) -> None:
    """Wait until the dashboard shows so many raylets, as a person would look before submitting."""
    import urllib.request

    asking = urllib.request.Request(
        f"http://{head}:8265/nodes?view=summary", headers={"Authorization": f"Bearer {token}"}
    )
    end = time.monotonic() + DEADLINE_S
    said = ""
    while time.monotonic() < end:
        again()
        try:
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(
                asking, timeout=5
            ) as answer:
                said = answer.read().decode()
            states = [node["raylet"]["state"] for node in json.loads(said)["data"]["summary"]]
            if states.count("ALIVE") == count:
                return
        except (OSError, ValueError, KeyError) as error:
            said = str(error)
        time.sleep(0.5)
    raise AssertionError(f"no {count} nodes: {said[-500:]}")
