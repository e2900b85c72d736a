"""A Ray cluster of a stage's nodes, for processes with its token: a head on the main node, a worker on each other one.

It lives as long as the program on the main node. A worker ends when the head no longer answers, so that no process
remains after a main node is killed.

`ray symmetric-run` (Ray 2.57) is not used: TERM ends it alone and leaves Ray and the program, it refuses a node on which
any other Ray runs, its `ray stop` at the end would end those of the user's other jobs, and a worker that cannot start
exits with 0 (tests/limits/test_launchers.py).
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from xp.errors import ExitCode, XpError
from xp.execution.launchers.node.job_spec import JobSpec
from xp.execution.launchers.node.program import SignalHandler, deaf_to_usr2, variables
from xp.execution.launchers.preflight import interpreter
from xp.lib import private_ray, processes
from xp.lib.loopback import free_ports
from xp.worker.nodes import Nodes, local_address

WAIT = """
import os, sys, time, ray
expected, end = int(sys.argv[1]), time.monotonic() + float(sys.argv[2])
while True:
    try:
        ray.init(address=os.environ["RAY_ADDRESS"], logging_level="error", log_to_driver=False)
        break
    except (ConnectionError, RuntimeError) as error:
        if time.monotonic() > end:
            sys.exit(str(error))
        ray.shutdown()
        time.sleep(1)
while (there := sum(node["Alive"] for node in ray.nodes())) < expected:
    if time.monotonic() > end:
        sys.exit(f"{there} of {expected} nodes joined the Ray cluster")
    time.sleep(0.5)
"""
"""Waits for all nodes. Ray itself waits a minute for the head's own node, which may take longer than its port."""
START_S = 900.0
"""Seconds until the head, and until all workers, must have started; Ray may be on a network filesystem."""
DEFAULTS = {**private_ray.NICENESS, "RAY_NUM_REDIS_GET_RETRIES": "150"}
"""Variables of `ray start`; the last one is a worker's number of requests, every 2 s, to a head that is starting."""
LOOK_S = 2.0
MISSES = 3
"""Number of consecutive unanswered requests after which the head counts as lost."""


def run_in_ray(
    spec: JobSpec, nodes: Nodes, ending: SignalHandler, play: Callable[[Mapping[str, str]], int]
) -> int:
    """Runs this node's part of the cluster; on the main node, runs the program in it and returns its exit code.

    Args:
        spec: the stage's job spec.
        nodes: the nodes of the stage.
        ending: shutdown state of this process.
        play: runs the program with further variables.

    Raises:
        XpError: RUNTIME if Ray does not start, or not all nodes join it.
    """
    part = _NodePart(spec, nodes)
    try:
        if nodes.number == 0:
            _wait_for_head(nodes, lambda: part.is_alive() and not ending.has_begun)
            _wait_for_all(spec, part, nodes)
            if ending.has_begun:
                return ExitCode.TERMINATED
            return play(part.cluster_variables)
        return _stay(part, nodes, ending)
    finally:
        part.stop()


class _NodePart:
    """Ray's processes on this node."""

    def __init__(self, spec: JobSpec, nodes: Nodes) -> None:
        spread = spec.spread
        assert spread is not None
        assert spread.ray_token is not None
        head = f"{nodes.address}:{nodes.port}"
        self.cluster_variables = {
            **nodes.variables(),
            **private_ray.token_variables(Path(spread.ray_token)),
            "RAY_ADDRESS": head,
        }
        self._directory = private_ray.directory_named(f"{spec.key} {head}")
        if nodes.number:
            _wait_for_head(nodes, lambda: True)
        pretended = int(spec.env.get(private_ray.PRETENDED_GPUS, 0))
        gpus = pretended or spread.num_gpus
        cpus = spread.num_cpus + pretended
        if nodes.number == 0:
            client, dashboard = free_ports(2)
            role = [
                "--head",
                f"--port={nodes.port}",
                "--include-dashboard=false",
                f"--ray-client-server-port={client}",
                f"--dashboard-port={dashboard}",
                f"--temp-dir={private_ray.files(self._directory)}",
            ]
        else:
            role = [f"--address={head}"]
        self._log = self._directory / f"node_{nodes.number}.log"
        address = local_address(nodes.address)
        environ = private_ray.joining(variables(spec), self.cluster_variables)
        del environ["RAY_ADDRESS"]  # otherwise `ray start` refuses to start another cluster
        command = [
            interpreter(spec.runtime),
            *private_ray.COMMAND,
            "start",
            *role,
            "--block",
            "--disable-usage-stats",
            f"--node-ip-address={address}",
            f"--num-cpus={cpus}",
            f"--num-gpus={gpus}",
            "--min-worker-port=0",
            "--max-worker-port=0",
        ]
        with self._log.open("wb") as log:
            self._process = processes.start(
                command,
                cwd=spec.root,
                env={**DEFAULTS, **environ},
                stdout=log,
                stderr=subprocess.STDOUT,
                preexec_fn=deaf_to_usr2,
            )

    def is_alive(self) -> bool:
        """Returns True; raises XpError(RUNTIME) with Ray's output if its processes have ended."""
        if self._process.poll() is not None:
            output = self._log.read_text(errors="replace")[-2000:]
            raise XpError(f"Ray ended on this node:\n{output}", ExitCode.RUNTIME)
        return True

    def stop(self) -> None:
        """Ends all processes of this node's part and removes its files."""
        processes.end(self._process)
        shutil.rmtree(self._directory, ignore_errors=True)


def _wait_for_head(nodes: Nodes, check: Callable[[], bool]) -> None:
    """Waits until the head answers; `check` returns False to end the wait."""
    end = time.monotonic() + START_S
    while not _answers(nodes) and check():
        if time.monotonic() > end:
            head = f"{nodes.address}:{nodes.port}"
            raise XpError(
                f"Ray's head at {head} was not reached within {START_S:g} s", ExitCode.RUNTIME
            )
        time.sleep(0.3)


def _wait_for_all(spec: JobSpec, part: _NodePart, nodes: Nodes) -> None:
    """Waits until all nodes have joined; raises XpError(RUNTIME) if they do not, or if Ray ends on this node."""
    with subprocess.Popen(
        [interpreter(spec.runtime), "-c", WAIT, str(nodes.count), str(START_S)],
        env=private_ray.joining(variables(spec), part.cluster_variables),
        cwd=spec.root,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            while process.poll() is None and part.is_alive():
                time.sleep(0.3)
        finally:
            process.kill()
        errors = process.communicate()[1]
    if process.returncode:
        lines = errors.strip().splitlines() or ["no message"]
        raise XpError(
            f"the Ray cluster of the stage's nodes is not complete: {lines[-1]}", ExitCode.RUNTIME
        )


def _stay(part: _NodePart, nodes: Nodes, ending: SignalHandler) -> int:
    """Waits until the head is lost, or this node must end."""
    misses = 0
    while misses < MISSES and not ending.has_begun:
        time.sleep(LOOK_S)
        misses = 0 if _answers(nodes) else misses + 1
        if misses == 0:
            part.is_alive()
    if ending.has_begun:
        return ExitCode.TERMINATED
    return ExitCode.OK


def _answers(nodes: Nodes) -> bool:
    with suppress(OSError):
        socket.create_connection((nodes.address, nodes.port), timeout=5).close()
        return True
    return False
