"""`ray ...` as a program that stays, and the time that Ray's own node has to come up.

Nodes run this file by its path, without xp on Python's: it imports nothing of xp.
"""

from __future__ import annotations

import random
import signal
import socket
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, Final, TypeVar

T = TypeVar("T")

START_TIMEOUT_S: Final = 180.0
"""Seconds until a node of Ray must have registered. Ray 2.56 gives it 30 (a constant in `node.py`), which every start
exceeds on a machine with ten other processes on each core; one whose raylet aborts is told only after this time."""
PART_TIMEOUT_S: Final = 600
"""Seconds that each process of Ray's may take to start."""
PATIENCE: Final[Mapping[str, str]] = {
    "RAY_DASHBOARD_STARTUP_TIMEOUT_S": str(PART_TIMEOUT_S),
    "RAY_DASHBOARD_SUBPROCESS_MODULE_WAIT_READY_TIMEOUT": str(PART_TIMEOUT_S),
    "RAY_agent_register_timeout_ms": str(1000 * PART_TIMEOUT_S),
    "RAY_worker_register_timeout_seconds": str(PART_TIMEOUT_S),
}
"""Variables of Ray's processes; its own limits are 60 s for the dashboard, 30 s for each part of it (the API of jobs is
one), 30 s for the agent of runtime environments, after which the raylet ends, and 60 s for a worker."""
AGENTS: Final = ("metrics_export_port", "metrics_agent_port", "runtime_env_agent_port", "dashboard_agent_listen_port")
"""Names of the ports of a node's agents."""
SHARED_PORT: Final = 52_365
"""Ray's default for the last of them, the same for all clusters of a machine."""
LOWEST_PORT: Final = 20_000
ROOM: Final = 4_000
"""Number of ports below the system's range that are enough to choose from. Many clusters' range begins at 1024."""
RANGE_FILE: Final = "/proc/sys/net/ipv4/ip_local_port_range"
_CHOICE: Final = random.SystemRandom()
"""Source of random ports; the module's own may have the same seed in several programs."""


@contextmanager
def patient() -> Iterator[None]:
    """Context in which Ray waits for the processes of the node that ray.init or `ray start` starts in it."""
    from ray._private import node, services

    get_node = services.get_node
    services.get_node = lambda *given, **named: until_known(lambda: get_node(*given, **named), START_TIMEOUT_S)
    try:
        # Older versions of Ray have neither the files with ports nor the raylet's flag.
        with _known_ports(node, services) if hasattr(node, "wait_for_persisted_port") else nullcontext():
            yield
    finally:
        services.get_node = get_node


@contextmanager
def _known_ports(node: Any, services: Any) -> Iterator[None]:
    """Context in which a node's agents get ports that are known before.

    A raylet waits 15 s, which is compiled in, for the file with each port that an agent chooses itself, and then
    aborts. Ray 2.56 does not pass the last port to its raylet at all.
    """
    start_raylet, gcs_port = services.start_raylet, node.wait_for_persisted_port

    def start(*given: Any, **named: Any) -> Any:
        lacking = [name for name in AGENTS if name in named and named[name] in (None, 0, SHARED_PORT)]
        chosen = free_ports(len(lacking), besides=_ports_of_command())
        ports: dict[str, Any] = {**named, **dict(zip(lacking, chosen, strict=True))}
        flags = [f"--{name}={ports[name]}" for name in AGENTS[-1:] if name in ports]
        start_process = services.start_ray_process
        services.start_ray_process = lambda command, *more, **options: start_process(
            [*command, *flags], *more, **options
        )
        try:
            return start_raylet(*given, **ports)
        finally:
            services.start_ray_process = start_process

    def wait(*given: Any, timeout_ms: int = 1000 * PART_TIMEOUT_S) -> Any:
        return gcs_port(*given, timeout_ms=timeout_ms)

    services.start_raylet, node.wait_for_persisted_port = start, wait
    try:
        yield
    finally:
        services.start_raylet, node.wait_for_persisted_port = start_raylet, gcs_port


def free_ports(count: int, address: str = "", besides: Collection[int] = ()) -> list[int]:
    """Different TCP ports that nobody listens on, for programs that take them later.

    They are below the system's range for connections and for port 0, so that no other program is given one of them
    before the program that it is for has started. Where too few ports are below it, the system chooses.

    Args:
        count: number of ports; two calls may return the same port.
        address: IPv4 address; empty: all of this machine.
        besides: ports that are not chosen, for example those of programs that do not listen yet.
    """
    held: list[socket.socket] = []
    ports: list[int] = []
    try:
        while len(ports) < count:
            held.append(socket.socket())
            _bind(held[-1], address)
            port = held[-1].getsockname()[1]
            ports += [] if port in besides else [port]
        return ports
    finally:
        for one in held:
            one.close()


def _bind(one: socket.socket, address: str) -> None:
    end = _first_given()
    for _ in range(100 if end - LOWEST_PORT >= ROOM else 0):
        with suppress(OSError):
            one.bind((address, _CHOICE.randrange(LOWEST_PORT, end)))
            return
    one.bind((address, 0))


def _first_given() -> int:
    """Lowest port that the system gives away itself."""
    try:
        with open(RANGE_FILE) as file:
            return int(file.read().split()[0])
    except OSError:
        return 32_768


def _ports_of_command() -> set[int]:
    """Numbers in this program's arguments; among them the ports of Ray's processes that may not listen yet."""
    values = (word.rpartition("=")[2] for word in sys.argv)
    return {int(value) for value in values if value.isdecimal()}


def until_known(node: Callable[[], T], timeout_s: float, pause_s: float = 0.5) -> T:
    """Call `node` until it raises no RuntimeError, by which Ray says that the node has not registered.

    Raises:
        RuntimeError: the last one, after `timeout_s`.
    """
    end = time.monotonic() + timeout_s
    while True:
        try:
            return node()
        except RuntimeError:
            if time.monotonic() > end:
                raise
        time.sleep(pause_s)


def main() -> None:
    """Run Ray's command line, then wait for a signal.

    `ray start --block` is not used: it ends everything when one of Ray's processes ends, even Ray Client's server,
    which fails on a busy machine.
    """
    from ray.scripts.scripts import cli

    with patient():
        cli(standalone_mode=False)
    signal.pause()


if __name__ == "__main__":
    main()
